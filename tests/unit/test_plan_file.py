"""A plan's file: what is written is what is read, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hsops.cli.deploy import Wish
from hsops.core.errors import ConfigError, UsageError
from hsops.deploy import plan_file
from hsops.deploy.facts import FileSeen, Seen
from hsops.deploy.planned import Action, Edit, Plan

B = FileSeen("00", 0o644, 1, 1)
SEEN = Seen(
    "box 1234", "/site", "/state", "0.5.9", None, ("x/*.py",), {"x/a.py": None, "x/b.py": B}, 0.0, {"x": "/site/real"}
)
PLAN = Plan(
    "hs-dump", "abc", {"boundaries": [1, 3]}, "absent", "", "0.5.9",
    (Action("append", "x/b.py", b"\xff\xfe", b"new\r\n"),), (Edit("x/b.py", b"new\r\n", "00", b"\xff\xfe"),),
    ("w",), "hook", SEEN,
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the plan."""
    plan_file.write(tmp_path / "plan.json", [("here", PLAN)], revert=False, force=True)
    return tmp_path / "plan.json"


def test_what_was_written_is_read(path: Path) -> None:
    """To the last byte, whatever the bytes; the file is for its owner only, and nothing lies beside it."""
    kept = plan_file.read(path)

    assert [(entry.host, entry.plan) for entry in kept.entries] == [("here", PLAN)]
    assert (kept.revert, kept.force) == (False, True)
    assert path.stat().st_mode & 0o777 == 0o600 and [p.name for p in path.parent.iterdir()] == ["plan.json"]


def _replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


@pytest.mark.parametrize(
    "edit,where,said",
    [
        (_replaced("hsops-plan/2", "hsops-plan/9"), "format", "made by another hsops: hsops-plan/9"),
        (_replaced('"append"', '"update"'), "sha256", "edited or damaged"),
        (_replaced('"force": true', '"force": false'), "sha256", "edited or damaged"),
        (_replaced("{", ""), "", "not JSON"),
        (lambda text: text[: len(text) // 2], "", "not JSON"),
        (lambda text: "[]", "format", "not a plan of hsops deploy"),
    ],
)
def test_a_file_that_is_not_what_was_made_is_refused(
    edit: Callable[[str], str], where: str, said: str, path: Path
) -> None:
    """Another format, an edit, half a file: with the place."""
    text = path.read_text()
    assert edit(text) != text
    path.write_text(edit(text))

    with pytest.raises(ConfigError) as caught:
        plan_file.read(path)

    (fault,) = caught.value.faults
    assert (fault.file, fault.where) == (str(path), where) and said in fault.message
    assert fault.line > 0 or "JSON" not in said


def test_no_file_is_a_fault_with_its_name(tmp_path: Path) -> None:
    """And what makes one."""
    with pytest.raises(ConfigError, match="No such file") as caught:
        plan_file.read(tmp_path / "plan.json")

    assert "--check --out" in caught.value.fix


@pytest.mark.parametrize(
    "wish",
    [
        Wish(out="x"),
        Wish(plan="x", revert=True),
        Wish(plan="x", patches=("hs-dump",)),
        Wish(plan="x", check=True, out="y"),
        Wish(plan="x", server="tiny"),
        Wish(plan="x", force=True),
        Wish(plan="x", status=True),
    ],
)
def test_options_that_do_not_go_together(wish: Wish) -> None:
    """A plan is carried out as it is."""
    with pytest.raises(UsageError):
        wish.check_sense()


def test_a_plan_tells_what_is_another_host_and_what_changed() -> None:
    """Each difference in words."""
    new = FileSeen("11", 0o644, 1, 1)
    files = {"x/a.py": new, "x/b.py": None, "x/c.py": new}
    now = Seen("box 1234", "/other", "/state", "0.5.10", "s", ("x/*.py",), files, 0.0, {"x": "/site/other"})

    assert SEEN.another(now) == ["folder /other, not /site"] and SEEN.another(SEEN) == SEEN.changed(SEEN) == []
    assert SEEN.changed(now) == [
        "SGLang is 0.5.10 now, it was 0.5.9",
        "somebody applied or reverted the patch",
        "x/a.py is new",
        "x/b.py is gone",
        "x/c.py is new",
        "x is a link to somewhere else",
    ]


@pytest.mark.parametrize(
    "now,said",
    [
        (replace(B, sha256="11", mode=0o600), "x/b.py is another"),
        (replace(B, mode=0o600), "x/b.py has mode 0600 now, it was 0644"),
        (replace(B, mode=0o4644), "x/b.py has mode 4644 now, it was 0644"),
        (replace(B, uid=0), "x/b.py belongs to 0:1 now, it was 1:1"),
        (replace(B, gid=7), "x/b.py belongs to 1:7 now, it was 1:1"),
    ],
)
def test_a_plan_tells_what_became_of_a_file(now: FileSeen, said: str) -> None:
    """Mode and owner are carried over from what lies there: they belong to what was shown."""
    assert SEEN.changed(replace(SEEN, files={**SEEN.files, "x/b.py": now})) == [said]


@pytest.mark.parametrize(
    "path,real",
    [("x/a.py", "/site/real/a.py"), ("x", "/site/real"), ("xy/a.py", "/site/xy/a.py"), ("y/x/a", "/site/y/x/a")],
)
def test_a_plan_knows_where_a_file_lies(path: str, real: str) -> None:
    """Behind links, of folders too."""
    assert SEEN.real(path) == real
