"""What a stranger does in the first hour, word for word: ``make newcomer``, and README alone in ``make test``.

From a clone of this repository and an empty HOME it types the blocks of README.md and docs/tutorial/lab.md that are
marked ``<!-- run: lab -->``, in their order, and looks whether what the pages claim is so. With ``--full`` it begins
with README's own ``make demo``, whose environment the rest then uses; else hsops runs on the Python that runs this,
from the clone.

Two things are not as for a stranger. pip's settings and the lab's cache of packages are shared, unless ``--cold``. And
``~`` on the host is the home of the login, which this script cannot move: the inventory that ``hsops init`` writes gets
the path in its place.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from tests.documents import Block, blocks  # noqa: E402 - a script finds its own repository

PATIENCE_S = 1500.0
PROMPTS = 12
SEEN = {"stacks": "2 of 2 ranks in spin", "threads": "eventfd", "files": "nothing is hidden", "http": "nobody listens"}


@dataclass(frozen=True)
class Stranger:
    """Somebody with a clone, an empty home, and a terminal.

    Args:
        clone: of this repository.
        home: HOME.
        env: the environment.
    """

    clone: Path
    home: Path
    env: dict[str, str]

    def types(self, text: str, cwd: Path, *, expect: int = 0) -> str:
        """Run lines in a shell; returns what they print, which is shown as it comes."""
        started = time.monotonic()
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text], cwd=cwd, env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        patience = threading.Timer(PATIENCE_S, lambda: os.killpg(shell.pid, signal.SIGINT))
        patience.start()
        told = []
        try:
            for line in shell.stdout or ():
                say(line.rstrip("\n"))
                told.append(line)
            code = shell.wait()
        except BaseException:
            os.killpg(shell.pid, signal.SIGINT)
            raise
        finally:
            patience.cancel()
        check(code == expect, f"it ends with {code}, the page says {expect}:\n{text}")
        check("Traceback (most recent" not in "".join(told), f"a traceback:\n{text}")
        say(f"  {time.monotonic() - started:.1f} s")
        return "".join(told)

    def block(self, block: Block, cwd: Path) -> str:
        """Type a block of a page."""
        say(f"\n{block.place}")
        say("".join(f"  $ {line}\n" for line in block.text.splitlines()))
        return self.types(block.text, cwd, expect=block.exit)


class WrongError(Exception):
    """A page claims what is not so."""


def say(text: str) -> None:
    """For whoever watches."""
    print(text, flush=True)  # noqa: T201


def check(true: object, claim: str) -> None:
    """Raise when a claim does not hold."""
    if not true:
        raise WrongError(claim)


def main() -> int:
    """Follow the pages; 1 and the claim when one does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--full", action="store_true", help="begin with make demo, as README does")
    parser.add_argument("--readme", action="store_true", help="README alone, without the tutorial")
    parser.add_argument("--cold", action="store_true", help="share no cache and no settings of pip")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hsops-newcomer-") as name:
        stranger = arrive(Path(name), cold=options.cold)
        try:
            if options.full:
                demo(stranger)
            readme(stranger)
            if not options.readme:
                tutorial(stranger)
        except WrongError as wrong:
            say(f"NOT AS THE PAGE SAYS: {wrong}")
            return 1
        finally:
            subprocess.run(["hsops", "lab", "down", "--purge"], env=stranger.env, check=False, cwd=name)
    say("every claim holds")
    return 0


def arrive(base: Path, *, cold: bool) -> Stranger:
    """Clone, and an empty home; what git does not track yet, or has changed, is cloned as it is."""
    clone, home, tools = base / "hsops", base / "home", base / "tools"
    for folder in (clone, home, tools):
        folder.mkdir()
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    pack = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"], cwd=ROOT, input=names, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x"], cwd=clone, input=pack, check=True)
    script = tools / "hsops"
    inside = f'PYTHONPATH={clone} exec "{sys.executable}" -m hsops "$@"'
    script.write_text(f'#!/bin/sh\n[ -x {clone}/.venv/bin/hsops ] && exec {clone}/.venv/bin/hsops "$@"\n{inside}\n')
    script.chmod(0o755)
    env = {"HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}", "LANG": "C.UTF-8", "COLUMNS": "100"}
    if not cold:
        env |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        env["HSOPS_CACHE_DIR"] = os.environ.get("HSOPS_CACHE_DIR", str(Path.home() / ".cache/hsops"))
    return Stranger(clone, home, env)


def demo(stranger: Stranger) -> None:
    """README's first command. The one below it, ``make test``, is what CI does."""
    say("--- make demo")
    stranger.types(_first(stranger.clone, "make demo").text.splitlines()[0], stranger.clone)
    check(not (stranger.home / ".hsops-demo").exists(), "the demo leaves nothing")


def tutorial(stranger: Stranger) -> None:
    """The blocks of the tutorial, on a lab of its own, up to the hang and its evidence."""
    say("\n--- docs/tutorial/lab.md")
    folder = stranger.home / "tutorial"
    folder.mkdir()
    told = [type_in(stranger, block, folder) for block in _marked(stranger.clone / "docs/tutorial/lab.md")]
    check("HUNG  warmup-deadlock-busy-wait" in "".join(told), "the hang is named as the tutorial says")
    check("warmup-deadlock-busy-wait" in (folder / "hang.html").read_text(), "the page is of that hang")
    hang(stranger.types("hsops diagnose --bundle hang.bundle --json", folder, expect=7))
    check(not (stranger.home / ".hsops-lab").exists(), "the lab is gone without a trace")


def hang(said: str) -> None:
    """The verdict on the hang that hsops was made for, and its evidence, out of the bundle."""
    verdict = json.loads(said.splitlines()[-1])["data"]["verdict"]
    seen = {source: " ".join(e["text"] for e in verdict["evidence"] if e["source"] == source) for source in SEEN}
    check((verdict["class"], verdict["confidence"]) == ("warmup-deadlock-busy-wait", "high"), f"the verdict: {verdict}")
    check(verdict["rank"] is None, "no rank is blamed for what all do")
    check(all(words in seen[source] for source, words in SEEN.items()), f"the evidence: {seen}")


def readme(stranger: Stranger) -> None:
    """The blocks of README on the lab, with what it says of them."""
    say("--- README.md")
    for target in re.findall(r"^make (\w+)", _first(stranger.clone, "make demo").text, re.MULTILINE):
        stranger.types(f"make --dry-run {target} > /dev/null", stranger.clone)
    inventory = next(b for b in blocks(stranger.clone / "README.md") if b.language == "yaml")
    (stranger.home / "rtx8.yaml").write_text(inventory.text)
    said = stranger.types("hsops -i rtx8.yaml --json logs || true", stranger.home)  # gpu-box is nowhere: exit 5, not 4
    check(json.loads(said.splitlines()[-1])["errors"][0]["type"] == "UnreachableError", "README's inventory is one")
    folder = stranger.home / "work"
    folder.mkdir()
    stranger.types("hsops init && hsops lab up", folder)
    at_home(stranger, folder)
    before = tree(stranger)
    lines = [json.dumps({"id": f"n{i}", "input_ids": list(range(3, 7 + i))}) + "\n" for i in range(PROMPTS)]
    (folder / "train.jsonl").write_text("".join(lines))
    day, again, more = _marked(stranger.clone / "README.md")
    told = stranger.block(day, folder)
    check(len(list((folder / "hs").glob("*.safetensors"))) == PROMPTS, "one safetensors file a sample")
    check(stranger.types(day.text, folder).count("nothing to do") >= 2, "a second time there is nothing to do")
    said = stranger.block(again, folder)
    check("every file verified" in said and "nothing to do" in said, "the one line repeats after anything")
    told = stranger.block(more, folder)
    check((folder / "train").is_dir() and "healthy" in told, "a data set, and a verdict")
    check("none left" in told, "stop proves that it is gone")
    stranger.types("hsops deploy --revert --yes", folder)
    check(tree(stranger) == before, "--revert brings back every byte")
    stranger.types("hsops lab down --purge", folder)


def type_in(stranger: Stranger, block: Block, folder: Path) -> str:
    """A block of the tutorial; after the one that writes the inventory the home in it is moved."""
    if "hsops init" not in block.text:
        return stranger.block(block, folder)
    first, rest = block.text.split("\n", 1)
    told = stranger.types(first, folder)
    at_home(stranger, folder)
    return told + stranger.types(rest, folder, expect=block.exit)


def at_home(stranger: Stranger, folder: Path) -> None:
    """``~`` in an inventory, as the login's home would be if it were this HOME."""
    path = folder / "inventory.yaml"
    path.write_text(path.read_text().replace("~/.hsops-lab", str(stranger.home / ".hsops-lab")))


def tree(stranger: Stranger) -> dict[str, str]:
    """Every file of the lab's SGLang."""
    (site,) = (stranger.home / ".hsops-lab/venv").glob("lib/python3*/site-packages")
    files = [path for path in sorted((site / "sglang").rglob("*.py")) if path.is_file()]
    return {str(path.relative_to(site)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _marked(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.where == "lab"]


def _first(clone: Path, words: str) -> Block:
    return next(block for block in blocks(clone / "README.md") if words in block.text)


if __name__ == "__main__":
    sys.exit(main())
