"""``make docs``: docs/ as a site, strictly: a link that leads nowhere, or a page that is in no menu, is a failure.

The pages are written for people who read them in the repository, so their links may leave docs/. Here they are staged:
README.md is the front page, YAML files become pages, and links to other files become plain words.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"
NAV: dict[str, list[str]] = {
    "Start": ["README.md", "docs/how-to/install.md", "docs/tutorial/lab.md", "docs/how-to/first-host.md"],
    "How to": [
        "docs/how-to/connect.md",
        "docs/how-to/proxyjump.md",
        "docs/how-to/containers.md",
        "docs/explanation/boxes-and-slurm.md",
        "docs/how-to/read-only-image.md",
        "docs/how-to/lab.md",
        "docs/how-to/doctor.md",
        "docs/how-to/patches.md",
        "docs/how-to/several-hosts.md",
        "docs/how-to/change-a-host.md",
        "docs/how-to/launch.md",
        "docs/how-to/silent-server.md",
        "docs/how-to/diagnose.md",
        "docs/how-to/check-capture.md",
        "docs/how-to/extract-and-fetch.md",
        "docs/how-to/slow-link.md",
        "docs/how-to/export.md",
    ],
    "Reference": [
        "docs/reference/commands.md",
        "docs/reference/inventory.md",
        "docs/reference/playbook.md",
        "docs/reference/exit-codes.md",
        "docs/reference/errors.md",
        "docs/reference/events.md",
        "docs/reference/python.md",
        "docs/reference/verdicts.md",
        "docs/reference/milestones.md",
        "docs/reference/models.md",
        "docs/reference/hs-dump.md",
        "docs/reference/dumps.md",
        "docs/reference/audit.md",
        "inventory.yaml",
        "playbooks/extract.yaml",
        "hsops/launch/nccl_profiles.yaml",
    ],
    "Measured": [],  # what else is in docs/reference
    "Why it is so": [],  # docs/explanation
    "Decisions": [],  # docs/decisions
    "Changes": ["CHANGELOG.md"],
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_TOML = """\
[project]
site_name = "hsops"
site_description = "Hidden states out of SGLang over SSH"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = [
{nav}
]
[project.theme]
features = ["navigation.sections", "navigation.top", "toc.follow", "content.code.copy", "search.highlight"]
[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "dark"
[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "light"
[project.markdown_extensions]
attr_list = {{}}
md_in_html = {{}}
tables = {{}}
toc.permalink = true
pymdownx.highlight.pygments_lang_class = true
pymdownx.superfences = {{}}
"""


def menu() -> dict[str, list[str]]:
    """``NAV``, and behind it what else is in the folders."""
    named = {name for names in NAV.values() for name in names}
    rest = {
        "Start": sorted(_pages("docs/tutorial") - named),
        "How to": sorted(_pages("docs/how-to") - named),
        "Measured": sorted(_pages("docs/reference") - named),
        "Why it is so": sorted(_pages("docs/explanation") - named),
        "Decisions": sorted(_pages("docs/decisions")),
    }
    return {section: [*names, *rest.get(section, [])] for section, names in NAV.items()}


def unlisted() -> list[str]:
    """Pages that no menu has, or that a menu has and nobody wrote."""
    listed = {name for names in menu().values() for name in names}
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")} - {"docs/README.md"}
    return sorted((there - listed) | {name for name in listed if not (ROOT / name).exists()})


def stage(folder: Path) -> None:
    """Everything that the generator reads."""
    pages = [name for names in menu().values() for name in names]
    for name in pages:
        to = folder / "pages" / _page(name)
        to.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        to.write_text(_linked(text, name, set(pages)) if name.endswith(".md") else _shown(name, text), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "images", folder / "pages" / "images")
    nav = ",\n".join(
        f'  {{ "{section}" = [{", ".join(f"{_page(name)!r}" for name in names)}] }}'
        for section, names in menu().items()
    ).replace("'", '"')
    (folder / "zensical.toml").write_text(_TOML.format(nav=nav), encoding="utf-8")


def main() -> int:
    """Build it into build/site; 1 when anything is not right."""
    if wrong := unlisted():
        print("scripts/site.py: in no menu, or not there:", *wrong, sep="\n  ")  # noqa: T201
        return 1
    with tempfile.TemporaryDirectory(prefix="hsops-site-") as name:
        stage(Path(name))
        generator = Path(sys.executable).parent / "zensical"
        done = subprocess.run([generator, "build", "--strict", "--clean"], cwd=name, check=False, env=_plain())
        if done.returncode == 0:
            shutil.rmtree(SITE, ignore_errors=True)
            shutil.copytree(Path(name) / "site", SITE)
            print(f"{SITE.relative_to(ROOT)}/index.html")  # noqa: T201
    return done.returncode


def _plain() -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1"}


def _pages(folder: str) -> set[str]:
    return {f"{folder}/{path.name}" for path in (ROOT / folder).glob("*.md")}


def _page(name: str) -> str:
    """Where a file of the repository is in the site."""
    if name == "README.md":
        return "index.md"
    plain = name.removeprefix("docs/")
    return plain if plain.endswith(".md") else f"files/{plain.replace('/', '-').replace('.', '-')}.md"


def _shown(name: str, text: str) -> str:
    return f"# {name}\n\n```yaml\n{text}```\n"


def _linked(text: str, name: str, pages: set[str]) -> str:
    """A page whose links lead to pages of the site."""
    here = posixpath.dirname(_page(name))

    def link(found: re.Match[str]) -> str:
        image, words, target, place = found[1], found[2], found[3], found[4] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        if image or path.startswith("docs/images/"):
            return f"{image}[{words}]({posixpath.relpath(path.removeprefix('docs/'), here or '.')})"
        if path in pages:
            return f"[{words}]({posixpath.relpath(_page(path), here or '.')}{place})"
        if path == "docs/README.md":
            return f"[{words}]({posixpath.relpath('index.md', here or '.')})"
        return words

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    linked = "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)
    return linked.replace('="docs/images/', '="images/')


if __name__ == "__main__":
    sys.exit(main())
