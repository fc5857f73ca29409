"""fetch.tree and agent.tree: names that are not believed, files that are still written."""

from __future__ import annotations

import json
import os
import string
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsops.agent import protocol, tree
from hsops.core.errors import UnreachableError
from hsops.core.events import ignore
from hsops.fetch import dumps
from hsops.fetch import tree as tree_
from hsops.fetch.plan import File
from hsops.fetch.tree import LOSSES, OURS, TreeFolder, TreeLayout, file_of, is_blind_to_case, refusals, shown
from hsops.fetch.trouble import Trouble
from hsops.remote.tree import Entry
from tests.samples import SAMPLE


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "..", "../a", "a/../b", "a/..", "", "a//b", ".", "./a", "a/", "a\0b", f"{OURS}/files.jsonl",
     "x" * 256, "/".join(["x" * 200] * 30), "\ud800"],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(path: str) -> None:
    """Each with its reason."""
    assert list(refusals([path, "good"], blind=False)) == [path]


@given(st.text(alphabet=string.ascii_letters + "./\0 é\udc80", max_size=12))
def test_whatever_is_let_through_stays_below(path: str) -> None:
    """By the rules of the system's own path arithmetic."""
    if not refusals([path], blind=False):
        assert os.path.normpath(os.path.join("/to", path)) == f"/to/{path}"
        assert path.encode("utf-8", "surrogateescape")


def test_a_file_and_a_folder_of_one_name() -> None:
    """A host that says both is lying; neither a folder is replaced nor a file."""
    assert list(refusals(["a", "a/b", "c"], blind=False)) == ["a"]
    assert list(refusals(["a", "a"], blind=False)) == ["a"]


def test_names_that_differ_in_case() -> None:
    """Both are refused where one would replace the other; nowhere else."""
    assert sorted(refusals(["A/x", "a/X", "b"], blind=True)) == ["A/x", "a/X"]
    assert refusals(["A/x", "a/X", "b"], blind=False) == {}
    mine = OURS.upper() + "/files.jsonl"
    assert sorted(refusals([mine, "A", "a/x"], blind=True)) == [mine, "A"]
    assert refusals([mine, "A", "a/x"], blind=False) == {}


def test_this_file_system_tells_case_apart(tmp_path: Path) -> None:
    """Also where the folder is not there yet; nothing is left of the question."""
    assert not is_blind_to_case(tmp_path / "not/yet")
    assert list(tmp_path.iterdir()) == []


def test_names_are_shown_without_what_a_terminal_acts_on() -> None:
    """Nor what it cannot print."""
    assert shown("a\x1b[2Jb\n\udc80é") == "a\\x1b[2Jb\\n\\udc80é"


def test_a_line_of_the_manifest_says_what_came() -> None:
    """With the part's name as it was, and nothing of a line that is torn."""
    file = file_of(Entry("a/b", 5, 6, 7))
    line = json.dumps(
        {**json.loads(file.line), "checksum": "xxh3:00", "local": {"size": 5, "mtime_ns": 1, "ctime_ns": 2}}
    )
    held = TreeLayout().parse(line)

    assert held and held.stamp and (held.file.part, held.file.version) == (file.part, file.version)
    assert TreeLayout().parse(line[:-1]) is None and TreeLayout().parse('{"name":1}') is None


def agent() -> Any:
    """One that is never asked."""
    return SimpleNamespace(host=SimpleNamespace(name="h"))


def listed(capsys: pytest.CaptureFixture[str], folder: Path, **params: Any) -> tuple[set[str], dict[str, Any]]:
    """Paths, and the result."""
    result = tree.list_tree({"folder": str(folder), **params})
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    return {path for event in events for path, *_ in event["files"]}, result


def test_the_agent_lists_files_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links are counted, not followed; patterns are of names, or of paths."""
    for name in ("a.log", "b/c.log", "b/d.txt", "e/f/g.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "out").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")

    paths, result = listed(capsys, tmp_path)
    assert paths == {"a.log", "b/c.log", "b/d.txt", "e/f/g.log"}
    assert result == {"open": [], "skipped": {"link": 1, "special": 1}}
    assert listed(capsys, tmp_path, include=["*.log"], exclude=["e"])[0] == {"a.log", "b/c.log"}
    assert listed(capsys, tmp_path, include=["b/*"])[0] == {"b/c.log", "b/d.txt"}
    with pytest.raises(protocol.Refusal):
        tree.list_tree({"folder": str(tmp_path / "none")})


def test_the_agent_names_what_is_still_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who reads does not write; a second name of a file is written too."""
    for name in ("read", "written", "idle"):
        (tmp_path / name).write_text("x")
    os.link(tmp_path / "written", tmp_path / "linked")

    with (tmp_path / "read").open(), (tmp_path / "written").open("a"):
        assert listed(capsys, tmp_path)[1]["open"] == ["linked", "written"]
    assert listed(capsys, tmp_path)[1]["open"] == []


@pytest.mark.parametrize("losses", [LOSSES, LOSSES + 1])
def test_a_link_that_is_lost_while_a_folder_is_followed(monkeypatch: pytest.MonkeyPatch, losses: int) -> None:
    """It is looked for again, a few times in a row."""
    left, told = [UnreachableError("cut")] * losses, list[object]()
    source = TreeFolder(agent(), "/x", Path("/none"), include=(), exclude=(), emit=told.append)
    source.refused = (Trouble("log", "open", ""),)

    def look() -> dict[str, File]:
        if left:
            raise left.pop()
        source.refused = ()
        return {}

    monkeypatch.setattr(source, "look", look)
    monkeypatch.setattr(tree_, "LOOK_S", 0)
    if losses > LOSSES:
        with pytest.raises(UnreachableError):
            list(source.follow(threading.Event()))
    else:
        assert list(source.follow(threading.Event())) == [{}]
    assert len(told) == LOSSES


def test_a_link_that_is_lost_while_a_manifest_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look that follows a loss may be lost too, and counts."""
    told, looks = list[object](), list[int]()
    source = dumps.Dumps(agent(), "/x", told.append, dumps.Until(count=5))
    source.listing = SimpleNamespace(samples={}, lines={}, position={})  # type: ignore[assignment]

    def lost(*_: object, **__: object) -> Any:
        looks.append(1)
        raise UnreachableError("cut")

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return False

    monkeypatch.setattr(dumps, "follow", lost)
    monkeypatch.setattr(dumps, "_listing", lost)
    with pytest.raises(UnreachableError):
        list(source.follow(Stop()))
    assert (len(told), len(looks)) == (LOSSES, LOSSES + 1)


def test_dumps_whose_names_are_one_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are refused, where one would replace the other."""
    samples = {id_: replace(SAMPLE, id=id_) for id_ in ("A", "a", "b")}
    listing = SimpleNamespace(samples=samples, lines=dict.fromkeys(samples, "{}"))
    monkeypatch.setattr(dumps, "_listing", lambda *_, **__: listing)
    for blind in (True, False):
        monkeypatch.setattr(dumps, "is_blind_to_case", lambda _, blind=blind: blind)
        source = dumps.Dumps(agent(), "/x", ignore, to=tmp_path)
        wanted = {f.id for f in source.look().values()}
        assert (wanted, [t.id for t in source.refused]) == (({"b"}, ["A", "a"]) if blind else ({"A", "a", "b"}, []))
