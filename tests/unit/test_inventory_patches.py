"""The four kinds of patches in inventory.yaml: what is right, and what is told of what is wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hsops.core.errors import ConfigError, Fault
from hsops.core.inventory_file import load
from hsops.deploy import parts

FULL = """\
hosts: { box: { ssh: local, python: /p } }
servers: { s: { host: box, model: m, patches: [hs, a, b, c] } }
patches:
  hs: { boundaries: [1] }
  a: { kind: diff, diff: ./a.patch, strip: 0 }
  b: { kind: files, from: ../b, to: ./sglang/b, root: ~/engine }
  c: { kind: script, run: c.py, files: [sglang/x.py], args: ["{root}"], env: { A: "1" }, timeout: 5 }
"""


def load_text(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    try:
        load(path)
    except ConfigError as error:
        return [str(fault).removeprefix(f"{path}:") for fault in error.faults]
    return []


def test_every_kind_beside_the_others(tmp_path: Path) -> None:
    """One capture and any number of others on one server; without kind it is hs-dump."""
    (tmp_path / "inventory.yaml").write_text(FULL)

    patches = load(tmp_path / "inventory.yaml").patches

    assert {name: (patch.kind, patch.place) for name, patch in patches.items()} == {
        "hs": ("hs-dump", "source"), "a": ("diff", "site"), "b": ("files", "~/engine"), "c": ("script", "site"),
    }  # fmt: skip
    assert patches["b"].to == "sglang/b"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "entry,fault",
    [
        ("{ kind: dif, diff: x }", "2:14: patches.p.kind: input should be 'hs-dump', 'diff', 'files' or"),
        ("{ kind: [diff] }", "2:14: patches.p.kind: input should be"),
        ("7", "2:6: patches.p: expected a mapping, got 7"),
        ("{ kind: diff }", "2:3: patches.p: 'diff' is missing"),
        ("{ kind: diff, diff: 3 }", "2:26: patches.p.diff: expected text, got 3"),
        ("{ kind: diff, diff: '' }", "2:26: patches.p.diff: names no file, got ''"),
        ("{ kind: diff, diff: x, strp: 1 }", "2:29: patches.p.strp: unknown key; did you mean 'strip'?"),
        ("{ kind: diff, diff: x, strip: -1 }", "2:36: patches.p.strip: input should be greater"),
        ("{ kind: diff, diff: x, root: lib }", "2:35: patches.p.root: 'lib' is neither site-packages nor an absolute"),
        ("{ kind: diff, diff: x, boundaries: [1] }", "2:29: patches.p.boundaries: unknown key"),
        ("{ kind: files, fromm: x, to: y }", "2:21: patches.p.fromm: unknown key; did you mean 'from'?"),
        ("{ kind: files, from: x, to: ../y }", "2:34: patches.p.to: '../y' is not a plain path below root"),
        ("{ kind: files, from: x, to: /y }", "2:34: patches.p.to: '/y' is not a plain path below root"),
        ("{ kind: script, run: x, files: [] }", "2:37: patches.p.files: needs at least 1 entry"),
        ("{ kind: script, run: x, files: [a/../b] }", "2:38: patches.p.files[0]: 'a/../b' is not a plain path"),
        ("{ kind: script, run: x, files: [a], timeout: soon }", "2:51: patches.p.timeout: expected a number"),
        ("{ kind: script, run: x, files: [a], args: [1] }", "2:49: patches.p.args[0]: expected text, got 1"),
        ("{ kind: script, run: x, files: [a], env: { 1A: x } }", "2:53: patches.p.env.1A: '1A' is not the name of an"),
    ],
)  # fmt: skip
def test_a_wrong_patch_is_told_with_its_place(entry: str, fault: str, tmp_path: Path) -> None:
    """Held against its own kind, so that a key of another kind is unknown."""
    found = load_text(tmp_path, f"patches:\n  p: {entry}\n")

    assert any(one.startswith(fault) for one in found), found


def test_the_manuals_examples_are_right(tmp_path: Path) -> None:
    """docs/how-to/patches.md."""
    text = (Path(__file__).parents[2] / "docs/how-to/patches.md").read_text()

    assert load_text(tmp_path, text.split("```yaml\n")[1].split("```")[0]) == []


def test_a_server_captures_once(tmp_path: Path) -> None:
    """Two of kind hs-dump are one too many; the other kinds do not count."""
    text = FULL.replace("[hs, a, b, c]", "[a, hs, b, hs2]") + "  hs2: { boundaries: [2] }\n"

    assert load_text(tmp_path, text) == [
        "2:58: servers.s.patches[3]: one server captures once: name one patch of kind hs-dump"
    ]


def identity(tmp_path: Path, entry: str) -> str:
    path = tmp_path / "inventory.yaml"
    path.write_text(f"patches:\n  p: {entry}\n")
    return parts.read(load(path).patches["p"], tmp_path, lambda at, message: pytest.fail(f"{at} {message}")).identity


def test_an_identity_is_of_contents_and_options(tmp_path: Path) -> None:
    """The local file's name and the folder do not count; every byte, mode and option does."""
    (tmp_path / "a.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/a").write_text("x")
    diff = identity(tmp_path, "{ kind: diff, diff: a.patch }")
    files = identity(tmp_path, "{ kind: files, from: folder, to: x }")
    found = {diff, files, identity(tmp_path, "{ kind: diff, diff: a.patch, root: /y }")}
    found.add(identity(tmp_path, "{ kind: files, from: folder, to: y }"))
    for options in ("", ", args: [a]", ", env: { A: x }", ", root: /y"):
        found.add(identity(tmp_path, f"{{ kind: script, run: a.patch, files: [x]{options} }}"))
    (tmp_path / "folder/a").chmod(0o700)
    found.add(identity(tmp_path, "{ kind: files, from: folder, to: x }"))
    (tmp_path / "folder").rename(tmp_path / "other")
    (tmp_path / "other/a").chmod(0o644)
    (tmp_path / "a.patch").rename(tmp_path / "b.patch")

    assert len(found) == 9
    assert identity(tmp_path, "{ kind: files, from: ./other, to: ./x }") == files
    assert identity(tmp_path, "{ kind: diff, diff: ./b.patch, strip: 1 }") == diff


@pytest.mark.parametrize(
    "make,said",
    [
        ("mkfifo pipe && echo", "is no plain file"),
        ("ln -s loop loop && echo", "Too many levels of symbolic links"),
        ("mkdir p && ln -s . p/up && echo", "'up' in it is a link to a folder"),
        ("mkdir p && ln -s gone p/broken && echo", "there is no"),
        ("mkdir p && touch p/$'a\\nb' && echo", "cannot be named on the host"),
        ("mkdir p && touch p/$'\\xff' && echo", "cannot be named on the host"),
        ("mkdir -p p/__pycache__ && touch p/__pycache__/x.pyc && echo", "there is no file in"),
        ("truncate -s 33M big && echo", "is larger than 32 MiB"),
    ],
)
def test_what_cannot_be_copied_is_refused(make: str, said: str, tmp_path: Path) -> None:
    """Links out, pipes, names that no JSON holds, too much: a fault of the inventory, before any host is asked."""
    subprocess.run(["bash", "-c", f"{make} >/dev/null"], cwd=tmp_path, check=False, timeout=20)
    (name,) = (path.name for path in tmp_path.iterdir())
    with pytest.raises(ConfigError) as caught:
        identity_with_faults(tmp_path, f"{{ kind: files, from: {name}, to: x }}")

    assert said in str(caught.value) and str(caught.value).startswith("inventory.yaml:2:")


def identity_with_faults(tmp_path: Path, entry: str) -> None:
    path = tmp_path.parent / "inventory.yaml"
    path.write_text(f"patches:\n  p: {entry}\n")
    parts.read(
        load(path).patches["p"], tmp_path, lambda at, message: Fault("inventory.yaml", 2, 1, ".".join(at), message)
    )
