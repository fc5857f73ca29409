"""fetch --from DIR: any folder of a host."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from hsops.core.inventory import HostSpec
from hsops.fetch.ledger import LEDGER
from hsops.fetch.tree import OURS
from tests.fetching import Place, envelope, place, wait_for
from tests.hosts import Server

MIB = 1 << 20


@pytest.fixture(params=["local", "ssh", "direct"])
def here(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Place:
    """A folder with small, empty, oddly named and large files, reached in each way."""
    state = str(tmp_path / "state")
    host = HostSpec(name="here", ssh="local", python=sys.executable, state_dir=state)
    if request.param != "local":
        host = server.spec.model_copy(update={"channel": request.param})
    dice = random.Random(1)
    made = place(host, tmp_path)
    sizes = {"empty": 0, "logs/a b.log": 1000, "logs/ü\n.log": 5, "deep/er/x.bin": 20 * MIB, "deep/y": MIB + 3}
    for name, size in {**sizes, **{f"many/{i}": i for i in range(300)}}.items():
        (made.source / name).parent.mkdir(parents=True, exist_ok=True)
        (made.source / name).write_bytes(dice.randbytes(size))
    with open(os.fsencode(made.source) + b"/odd\xff", "wb") as file:
        file.write(b"not UTF-8")
    return made


@pytest.fixture
def local(tmp_path: Path) -> Place:
    """This machine, with an empty folder."""
    host = HostSpec(name="here", ssh="local", python=sys.executable, state_dir=str(tmp_path / "state"))
    made = place(host, tmp_path)
    made.source.mkdir(parents=True)
    return made


def fetch(here: Place, *words: str, expect: int = 0) -> dict[str, Any]:
    """Fetch the folder; returns the data."""
    found: dict[str, Any] = here.fetch("--from", str(here.source), *words, expect=expect)["data"]
    return found


def content(folder: Path) -> dict[bytes, bytes]:
    """All files of a folder but ours."""
    return {
        os.fsencode(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and OURS not in p.parts
    }


def test_a_folder_comes_as_it_is(here: Place) -> None:
    """Whole; a second time there is nothing to do; then only what changed, and what was lost here."""
    data = fetch(here)
    assert (data["files"], data["fetched"], data["troubles"]) == (306, 306, [])
    assert content(here.to) == content(here.source)
    assert fetch(here)["fetched"] == 0
    (here.source / "many/7").write_bytes(b"another")
    (here.to / "deep/y").unlink()
    (here.to / "many/8").write_bytes(b"damaged!")

    assert fetch(here)["fetched"] == 3
    assert content(here.to) == content(here.source)


def test_only_what_is_wanted(local: Place) -> None:
    """Patterns of names and of folders."""
    for name in ("a.log", "keep/b.log", "keep/c.txt", "tmp/d.log"):
        (local.source / name).parent.mkdir(exist_ok=True)
        (local.source / name).write_text(name)

    assert fetch(local, "--include", "*.log", "--exclude", "tmp")["files"] == 2
    assert set(content(local.to)) == {b"a.log", b"keep/b.log"}


def test_a_file_that_is_still_written_is_left_for_later(local: Place) -> None:
    """The others come, it is told (exit 3); with --follow it comes when it is closed."""
    (local.source / "done").write_text("x")
    with (local.source / "log").open("w") as log:
        log.write("begun")
        log.flush()
        (trouble,) = fetch(local, expect=3)["troubles"]
        assert (trouble["id"], trouble["code"]) == ("log", "open")
        assert set(content(local.to)) == {b"done"}
        process = local.start_fetch("--from", str(local.source), "--follow")
        (local.source / "late").write_text("y")
        wait_for((local.to / "late").exists, "a file that came meanwhile")
        log.write(" and done")

    assert envelope(process, 0)["data"]["files"] == 3
    assert content(local.to) == content(local.source)


def test_a_folder_is_emptied_when_it_is_safe_here(local: Place) -> None:
    """Also what came before."""
    for name in ("a", "b/c"):
        (local.source / name).parent.mkdir(exist_ok=True)
        (local.source / name).write_text(name)
    fetch(local)
    (local.source / "new").write_text("new")

    assert fetch(local, "--evict")["evicted"] == 3
    assert content(local.source) == {}
    assert set(content(local.to)) == {b"a", b"b/c", b"new"}
    assert (local.to / OURS / LEDGER).read_text().count("evicted") == 3


def test_the_only_copy_is_not_replaced(local: Place) -> None:
    """The host was freed of it and makes another of its name: that one comes when the older has been moved away."""
    (local.source / "log").write_text("first")
    fetch(local, "--evict")
    (local.source / "log").write_text("second")
    (local.source / "other").write_text("x")

    data = fetch(local, "--evict", expect=3)
    assert [(t["id"], t["code"]) for t in data["troubles"]] == [("log", "only-copy")]
    assert content(local.to) == {b"log": b"first", b"other": b"x"}
    assert content(local.source) == {b"log": b"second"}
    (local.to / "log").rename(local.to / "log.1")
    assert fetch(local, "--evict")["evicted"] == 1
    assert content(local.to) == {b"log": b"second", b"log.1": b"first", b"other": b"x"}


def test_nothing_is_written_through_a_link_of_the_local_folder(local: Place, tmp_path: Path) -> None:
    """Somebody who can write there cannot send files elsewhere."""
    (local.source / "sub").mkdir()
    (local.source / "sub/a").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    local.to.mkdir()
    (local.to / "sub").symlink_to(tmp_path / "elsewhere")

    (local.source / "b").write_text("y")
    (trouble,) = fetch(local, expect=3)["troubles"]

    assert (trouble["id"], trouble["code"]) == ("sub/a", "local") and "it is a link" in trouble["message"]
    assert (local.to / "b").read_text() == "y"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_it_must_be_said_where_to(local: Place) -> None:
    """There is no place of its own for any folder."""
    (error,) = envelope(local.start("fetch", "--from", str(local.source), "--json"), 2)["errors"]

    assert "--to" in error["message"]
