"""What the supervisor of a run records, when the host makes it hard."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hsops.agent import oom, procs
from hsops.agent.rundir import RunDir
from hsops.agent.supervisor import Supervisor, _begun


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    """Of a server that is this very process; it watches nothing."""
    found = Supervisor.__new__(Supervisor)
    found.run, found.spec, found.state = RunDir(str(tmp_path)), {"tp": 2, "port": 0}, _begun(os.getpid())
    found._watched, found._unnamed, found._recorded, found._failed = {}, set(), set(), None
    found.oom = oom.OomWatch()
    found.run.write("spec.json", found.spec)
    return found


def events(supervisor: Supervisor) -> list[dict[str, str]]:
    return [json.loads(line) for line in (Path(supervisor.run.path) / "events.jsonl").read_text().splitlines()]


def test_a_full_disk_does_not_end_the_watch(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the event, nor the state, nor what would be said of it can be written."""
    os.symlink("/dev/full", f"{supervisor.run.path}/events.jsonl")
    supervisor.run.path += "/events.jsonl"  # no folder: state.json cannot be written either
    log = open("/dev/full", "w", buffering=1)  # noqa: SIM115 - to close it fails
    monkeypatch.setattr(sys, "stderr", log)

    supervisor.run.event("ended")
    supervisor.save()

    with contextlib.suppress(OSError):
        log.close()


def test_an_event_is_left_out_on_a_full_disk(supervisor: Supervisor) -> None:
    """It went to the end of the supervisor: nobody was left to record the ends."""
    os.symlink("/dev/full", f"{supervisor.run.path}/events.jsonl")

    supervisor.run.event("ended")
    supervisor.save()

    assert supervisor.run.read("state.json")["pid"] == os.getpid()


@pytest.fixture
def zombie() -> procs.Proc:
    """A rank that was killed before its title was read."""
    me = procs.look(os.getpid())
    assert me
    return me._replace(pid=1 << 30, ppid=me.pid, state="Z", comm="sglang::schedul", status=9)  # above every real pid


def test_ranks_without_a_number_are_recorded_once(supervisor: Supervisor, zombie: procs.Proc) -> None:
    """Two that died before their titles were read both are "scheduler", and nobody can tell which is which."""
    ranks = [zombie, zombie._replace(pid=zombie.pid + 1)]

    for rank in ranks * 3:
        supervisor._nameless(rank)
    supervisor.state["ranks"]["TP0"] = None
    supervisor._name_late()

    assert [event["kind"] for event in events(supervisor) if event["kind"] == "seen"] == ["seen", "seen"]
    assert list(supervisor.state["helpers"]) == ["scheduler"]


def test_a_rank_that_died_unnamed_is_told_at_once_and_named_later(supervisor: Supervisor, zombie: procs.Proc) -> None:
    """Its death does not wait for the title of the other one, which tells its number."""
    supervisor._nameless(zombie)
    supervisor._name_late()
    at_once = dict(supervisor.run.read("state.json")["helpers"])
    supervisor.state["ranks"]["TP0"] = None
    supervisor._name_late()

    later = supervisor.run.read("state.json")
    assert at_once["scheduler"]["signal"] == "SIGKILL"
    assert later["ranks"] == {"TP0": None, "TP1": at_once["scheduler"]} and later["helpers"] == {}
    assert later["rank_pids"] == {"TP1": zombie.pid}


def test_only_a_listener_of_its_own_shows_that_a_server_serves(supervisor: Supervisor) -> None:
    """The port may be somebody else's."""
    supervisor.spec["restart"] = {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        supervisor.spec["port"] = server.getsockname()[1]
        supervisor._tend()
        foreign = supervisor.state["served"]
        child = subprocess.Popen(["sleep", "60"], pass_fds=[server.fileno()])
        try:
            supervisor._tend()
        finally:
            child.kill()
            child.wait()

    assert not foreign and supervisor.state["served"]


def test_a_pid_that_is_anothers_by_now_is_not_of_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was reaped and given away after the list of children was read: SIGKILL would meet a stranger."""
    monkeypatch.setattr(procs, "children", lambda pid: [1] if pid == os.getpid() else [])

    assert procs.tree(os.getpid()) == []


MASKED = {"argv": ["/bin/sh", "-c", 'test "$1" = k3y', "sh", "--api-key", "***"]}
KEYED = {"argv": [*MASKED["argv"][:-1], "k3y"]}


def started(run: RunDir) -> Supervisor:
    """Of that run, without what a process has only once."""
    found = Supervisor.__new__(Supervisor)
    found.run, found.env, found.argv, found._watched = run, {}, [], {}
    return found


def test_no_server_starts_with_a_mask_for_a_key(tmp_path: Path) -> None:
    """Everybody who types three asterisks would be let in."""
    run = RunDir(str(tmp_path))
    run.write("spec.json", MASKED)

    with pytest.raises(OSError, match="its keys are gone") as caught:
        started(run).start()

    assert caught.value.filename == f"{run.path}/secrets.json" and not os.path.exists(run.log)


def test_a_next_attempt_has_the_keys_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever became of the file meanwhile."""
    run, argvs = RunDir(str(tmp_path)), []
    monkeypatch.setattr(os, "posix_spawn", lambda _path, argv, *_, **__: argvs.append(argv) or os.getpid())
    monkeypatch.setattr(Supervisor, "_watch", lambda *_: None)
    run.write("spec.json", MASKED)
    run.write("secrets.json", KEYED)
    supervisor = started(run)
    monkeypatch.chdir(tmp_path)

    supervisor.start()
    os.unlink(f"{run.path}/secrets.json")
    supervisor.start({"attempt": 2})

    assert argvs == [KEYED["argv"]] * 2
