"""The host's lock with real clients: it names its holder, expires, and a holder that lost it changes nothing more."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import audit, leases, lock
from hsops.agent.patch_site import Site
from hsops.agent.patch_store import Store
from hsops.agent.protocol import Refusal
from hsops.core.errors import AgentError, LockedError
from hsops.core.inventory import HsDumpPatch
from hsops.deploy import do, payload, plan
from hsops.remote import runs
from hsops.remote.lock import Lock, evict, holder
from tests import lock_client
from tests.hosts import run_dir
from tests.integration.test_patch_engine import apply, contents, edits, judge
from tests.practice_host import PracticeHost, practice_host
from tests.witness import pause_inside, place_witness, violations

Client = subprocess.Popen[str]
Hold = Callable[..., Client]


@pytest.fixture
def host(tmp_path: Path) -> PracticeHost:
    """A host with an SGLang of its own."""
    return practice_host(tmp_path)


@pytest.fixture
def begin(host: PracticeHost) -> Iterator[Hold]:
    """A function that starts a client: ``begin(ttl=1.0)``; see ``tests/lock_client.py``."""
    clients: list[Client] = []

    def start(ttl: float = 2.0, boundary: int = 5) -> Client:
        words = [sys.executable, lock_client.__file__, host.python, str(host.state), str(ttl), str(boundary)]
        pipe = subprocess.PIPE
        clients.append(subprocess.Popen(words, env=run_dir(), stdin=pipe, stdout=pipe, text=True))
        return clients[-1]

    yield start
    for client in clients:
        client.kill()
        client.communicate()


@pytest.fixture
def hold(begin: Hold) -> Hold:
    """As ``begin``, when the client holds the lock."""

    def start(**options: Any) -> Client:
        client = begin(**options)
        assert client.stdout and client.stdout.readline() == "holding\n"
        return client

    return start


def said(client: Client) -> str:
    """What a client that may go on says at its end."""
    out, _ = client.communicate("go on\n", timeout=60)
    return out.strip()


def deployed(host: PracticeHost) -> list[int]:
    """The boundaries of what lies there."""
    return list(json.loads((host.site / "hsops_hs_dump/config.json").read_text())["boundaries"])


def test_who_has_to_wait_is_told_for_whom(host: PracticeHost, hold: Hold) -> None:
    """Exit 6 with user, machine, pid, command, its user's reason and age, and what to do; nothing is changed."""
    client = hold(ttl=60)
    before = host.tree()

    done = host.hsops("deploy", "--yes", "--json", "--lock-wait", "0")

    (error,) = json.loads(done.stdout.splitlines()[-1])["errors"]
    assert (done.returncode, error["type"], error["host"]) == (6, "LockedError", "here")
    assert f"@{os.uname().nodename}, pid {client.pid}, holds this host's lock" in error["message"]
    assert "'hsops deploy' (hs-dump " in error["message"] and error["message"].endswith(" s")
    assert ": the night run) since " in error["message"]
    assert "--lock-wait" in error["fix"] and "hsops unlock" in error["fix"]
    assert host.tree() == before and said(client) == "done"


def test_a_client_that_waits_goes_on_when_the_other_is_done(host: PracticeHost, hold: Hold) -> None:
    """It says meanwhile for whom it waits."""
    client = hold(ttl=60)
    waiting = host.begin("deploy", "--yes", "--lock-wait", "60")
    assert waiting.stderr
    words = next(line for line in waiting.stderr if "waits up to" in line)

    end = said(client)
    _, err = waiting.communicate(timeout=60)

    assert f"pid {client.pid}, holds" in words and end == "done"
    assert waiting.returncode == 1 and "changed since it was looked at" in err  # planned before the other's revert
    assert host.hsops("deploy", "--yes").returncode == 0 and deployed(host) == [1, 3]


def test_who_waited_for_a_deploy_of_the_same_is_done(host: PracticeHost, hold: Hold) -> None:
    """Two colleagues deploy one patch: the second finds what it came for; a plan file is stricter."""
    agent, wanted = host.agent(), payload.build(HsDumpPatch(name="hs-dump", boundaries=(5,)))
    planned = plan.plan(do.look(agent, "hs-dump"), wanted)
    hold(ttl=2)
    before = host.tree()

    done = do.apply(Lock(agent, "test"), planned)
    with pytest.raises(AgentError, match="changed since it was looked at"):
        do.apply(Lock(agent, "test"), planned, exact=True)

    assert done.already and not done.changed and host.tree() == before


def test_the_lock_of_a_killed_client_expires(host: PracticeHost, hold: Hold) -> None:
    """Not before its time; then the next one goes on."""
    agent, impatient = host.agent(), host.agent(lock_wait=0)
    impatient.call("hello")  # so that nothing but the question takes time
    client = hold(ttl=5)
    client.kill()
    client.wait()
    _, left = leases.current(leases.folder_of(str(host.state)))

    with pytest.raises(LockedError):
        Lock(impatient, "test").call("patch-revert", what="", patch="hs-dump")
    done = host.hsops("deploy", "--yes", "--lock-wait", "30")

    _, next_lease = leases.current(leases.folder_of(str(host.state)))
    assert left and next_lease and next_lease["n"] > left["n"]
    assert next_lease["taken"] >= left["renewed"] + left["ttl"]
    assert done.returncode == 0, done.stderr
    assert deployed(host) == [1, 3] and holder(agent) is None


def test_a_client_that_stood_still_is_refused_when_it_wakes(host: PracticeHost, hold: Hold) -> None:
    """Stopped while it held the lock, which expired: another deploys; the first then changes nothing."""
    client = hold(ttl=2)
    client.send_signal(signal.SIGSTOP)

    done = host.hsops("deploy", "--yes", "--lock-wait", "30")
    before = host.tree()
    client.send_signal(signal.SIGCONT)
    end = said(client)

    assert done.returncode == 0, done.stderr
    assert end.startswith("LockedError the host's lock was lost: ")
    assert host.tree() == before and deployed(host) == [1, 3]


def test_nobody_took_it_and_it_is_over_all_the_same(host: PracticeHost, hold: Hold) -> None:
    """An expired lock is not taken up again silently: somebody may have looked and gone."""
    client = hold(ttl=2)
    until = time.monotonic() + 20
    agent = host.agent()
    while (found := holder(agent)) and found.state != "expired" and time.monotonic() < until:
        time.sleep(0.05)

    assert found and found.state == "expired"
    assert said(client) == "LockedError the host's lock was lost: it expired; nothing more was changed"


def test_an_agent_that_stands_still_inside_a_change_is_ended(host: PracticeHost, begin: Hold) -> None:
    """Its lock expires; the next client ends the process, undoes what was half done, says so, and goes on."""
    place_witness(host)
    pause_inside(host)
    client = begin(ttl=4)
    stopped = _wait_stopped(host)

    done = host.hsops("deploy", "--yes", "--lock-wait", "30")
    end = said(client)

    assert done.returncode == 0 and "an interrupted change of hs-dump was undone" in done.stderr, done.stderr
    assert not Path(f"/proc/{stopped}").exists() or _state(stopped) == "Z"
    assert end.startswith("LockedError the host's lock was lost"), end
    assert deployed(host) == [1, 3] and not violations(host)


def test_a_client_killed_inside_a_change_leaves_no_lock(host: PracticeHost, begin: Hold) -> None:
    """Its agent dies with it: nobody has to wait for the lock to expire."""
    place_witness(host)
    pause_inside(host)
    client = begin(ttl=600)
    stopped = _wait_stopped(host)
    client.kill()
    with contextlib.suppress(ProcessLookupError):  # it may have died with its client
        os.kill(stopped, signal.SIGKILL)

    done = host.hsops("deploy", "--yes", "--lock-wait", "5")

    assert done.returncode == 0 and "an interrupted change" in done.stderr, done.stderr
    assert deployed(host) == [1, 3]


def test_unlock_shows_whom_it_evicts(host: PracticeHost, hold: Hold) -> None:
    """And that one changes nothing more."""
    client = hold(ttl=600)
    before = host.tree()

    asked = host.hsops("unlock")  # there is nobody to ask
    looked = host.hsops("unlock", "--check")
    done = host.hsops("unlock", "--yes", "--json", "--reason", "it hangs")
    again = host.hsops("unlock", "--yes")
    deploy, evicted = audit.read({"state_dir": str(host.state)})["lines"]
    told = host.hsops("audit").stdout
    end = said(client)

    (row,) = json.loads(done.stdout.splitlines()[-1])["data"]["hosts"]
    assert asked.returncode == 2 and f"pid {client.pid}, holds" in asked.stderr
    assert f"pid {client.pid}, holds this host's lock for 'hsops deploy'" in looked.stdout
    assert ": the night run)" in asked.stderr and ": the night run)" in looked.stdout
    assert row["evicted"] and row["holder"]["pid"] == client.pid
    assert (row["holder"]["what"][:8], row["holder"]["reason"]) == ("hs-dump ", "the night run")
    assert (deploy["reason"], evicted["reason"], evicted["of"]["reason"]) == (
        "the night run",
        "it hangs",
        "the night run",
    )
    assert ": the night run\n" in told and ": the night run)  by " in told and told.endswith(": it hangs\n")
    assert again.stdout == "here: nobody holds the lock\n"
    assert end.startswith("LockedError the host's lock was lost") and "'hsops unlock'" in end
    assert host.tree() == before


def test_unlock_evicts_only_the_one_that_was_shown(host: PracticeHost, hold: Hold) -> None:
    """While somebody thinks about the question the holder may be another."""
    client = hold(ttl=600)
    agent = host.agent()
    shown = holder(agent)
    assert shown and said(client) == "done"
    second = hold(ttl=600)

    with pytest.raises(AgentError) as caught:
        evict(agent, shown)

    assert caught.value.code == "changed-meanwhile" and f"pid {second.pid}" in caught.value.message
    assert said(second) == "done"


def test_a_server_is_not_stopped_beside_a_deploy_unless_forced(host: PracticeHost, hold: Hold) -> None:
    """``stop --force`` says who holds the lock, and goes on."""
    run = host.agent().call(
        "run-start", server="tiny", model="none", tp=1, port=0, host="127.0.0.1", env={}, spec_hash="s", dump_dir="",
        patches={}, needs=[], argv=["/bin/sleep", "600"],
    )["run"]  # fmt: skip
    client = hold(ttl=600)

    refused = host.hsops("stop", "--lock-wait", "0")
    there = Path(f"/proc/{run['pid']}").exists()
    forced = host.hsops("stop", "--force", "--json")

    (stopped,) = json.loads(forced.stdout.splitlines()[-1])["data"]["stopped"]
    assert refused.returncode == 6 and there and f"pid {client.pid}" in refused.stderr
    assert "hsops stop --force" in refused.stderr
    assert forced.returncode == 0 and not runs.list_runs(host.agent())[0].alive
    assert f"pid {client.pid}, holds" in stopped["beside"] and said(client) == "done"


def test_a_server_is_not_started_with_a_patch_that_is_another_by_now(host: PracticeHost) -> None:
    """Somebody deployed between the look at the patches and the start."""
    with pytest.raises(AgentError) as caught:
        host.agent().call(
            "run-start", server="tiny", model="none", tp=1, port=0, env={}, spec_hash="s", needs=[], argv=["true"],
            patches={"hs-dump": "0" * 12},
        )  # fmt: skip

    assert caught.value.code == "changed-meanwhile" and not runs.list_runs(host.agent())


@pytest.fixture
def state_dir(tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.mark.parametrize("step", [1, 4, 6, 9])
def test_a_holder_elsewhere_stops_at_its_next_step(step: int, state_dir: str, tmp_path: Path) -> None:
    """A process on another machine of the same state_dir cannot be ended; it stops by itself and undoes nothing."""
    site = Site(str(tmp_path / "site"))
    (tmp_path / "site/sglang/srt/models").mkdir(parents=True)
    (tmp_path / "site/sglang/srt/models/model.py").write_bytes(b"class Model: ...\n")
    before, left = contents(site), [step]

    with lock.held({"state_dir": state_dir}) as mine:
        assert mine.lease

        def fence() -> None:
            left[0] -= 1
            if left[0] == 0:
                next_lease = leases.fresh(mine.lease, {**mine.lease, "token": "other", "who": "bob@box"})
                assert leases.claim(mine.folder, next_lease)
            mine.check()

        with pytest.raises(Refusal, match="bob@box took it") as caught:
            apply(site, state_dir, edits(site), "a", fence=fence)
        half = contents(site)

    assert caught.value.code == "lock-lost" and left[0] <= 0
    assert (half == before) == (step == 1)
    Store(state_dir, "p", site).recover()
    assert contents(site) == before and judge(site, state_dir)["state"] == "absent"


def test_of_many_that_take_it_at_once_one_has_it(state_dir: str) -> None:
    """Eight processes, each forty times: never two inside, told by a file that only one can make."""
    os.mkdir(state_dir)
    inside, children = os.path.join(state_dir, "inside"), []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            code = 0
            try:
                for _ in range(40):
                    with lock.held({"state_dir": state_dir, "lock": {"wait": 60}}):
                        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
                        os.unlink(inside)
            except BaseException:
                code = 1
            os._exit(code)
        children.append(child)

    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert leases.current(leases.folder_of(state_dir))[0] == 8 * 40
    assert len(os.listdir(leases.folder_of(state_dir))) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"n": 7}', '{"n": 7, "ttl": "x"}'])
def test_a_damaged_lease_counts_as_expired(text: str, state_dir: str) -> None:
    """A half-written or foreign file must not lock a host for ever."""
    folder = leases.folder_of(state_dir)
    os.makedirs(folder)
    Path(folder, "7.lease").write_text(text)

    with lock.held({"state_dir": state_dir, "lock": {"wait": 0}}) as mine:
        assert mine.lease and mine.lease["n"] == 8


def test_a_lease_of_another_boot_counts_by_the_clock_on_the_wall(state_dir: str) -> None:
    """After a reboot, or from another machine of the same state_dir."""
    with lock.held({"state_dir": state_dir}) as mine:
        assert mine.lease
        elsewhere = {**mine.lease, "boot": "another", "where": "another"}

        assert leases.state_of(elsewhere) == "held"
        assert leases.state_of({**elsewhere, "renewed": time.time() - 31}) == "expired"


def _wait_stopped(host: PracticeHost) -> int:
    """The agent's process that stopped itself inside its change."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        _, lease = leases.current(leases.folder_of(str(host.state)))
        if lease and lease.get("agent") and _state(lease["agent"][0]) == "T":
            return int(lease["agent"][0])
        time.sleep(0.01)
    raise AssertionError("the agent never stopped")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
