"""extract against servers that die, hang, refuse and share: real processes under the real supervisor, real HTTP."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event as Event_

import pytest

from hsops.core.dumps import Sample, token_bytes
from hsops.core.errors import LockedError, UnhealthyError, UsageError
from hsops.core.events import Event, Note, ignore
from hsops.core.prompts import Prompt
from hsops.core.runs import Run
from hsops.extract import lane as lanes
from hsops.extract.extract import extract
from hsops.extract.job import Drained, Extracted, Job
from hsops.extract.journal import Journal, Tried, only_one
from hsops.extract.place import Finding, Place
from hsops.extract.plan import Capture
from hsops.extract.pool import Failure
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.dumps import list_samples
from hsops.remote.log import read_log
from hsops.render.extract import lines, outcome
from tests.running import VICTIMS, wait_for
from tests.running import start as start_victim

EMPTY = Extracted(prompts=1, already=0, samples=0, tokens=0, bytes=0, servers=())
DEAD = Finding(True, "server-died: it is gone", {"class": "server-died"})


@dataclass
class Site:
    """Servers of this machine, each with a dump folder, and what was asked of their caretakers.

    Args:
        agent: on this machine.
        folder: for everything.
        again: the words with which a server is started again, by name.
        comes_back: those that their policy starts again, and how often they have been started.
        empties: a launch does what a container does that is started anew: its RAM disk is empty.
        slow: a launch takes until this is set.
    """

    agent: Agent
    folder: Path
    again: dict[str, tuple[str, ...]] = field(default_factory=dict)
    comes_back: dict[str, int] = field(default_factory=dict)
    diagnosed: list[str] = field(default_factory=list)
    launched: list[tuple[str, bool]] = field(default_factory=list)
    finding: Finding = DEAD
    empties: bool = False
    slow: Event_ | None = None

    def start(self, name: str, *words: str, **more: object) -> Run:
        """A server that is up."""
        env = {"PYTHONPATH": str(VICTIMS.parents[1]), "SGLANG_HS_DUMP_DIR": "{dump_dir}", "SGLANG_HS_RUN": "{run}"}
        kind = {"victim": "serving.py", "server": name, "tp": 1, "dump_dir": str(self.dumps(name))}
        run = start_victim(self.agent, "{port}", *words, env=env, **kind, **more)
        for piece in read_log(self.agent, run.id, follow=True):
            if b"up\n" in piece:
                return run
        raise AssertionError("it did not come up")

    def dumps(self, name: str) -> Path:
        """Where it writes."""
        return self.folder / name

    def place(self, name: str) -> Place:
        """The server for an extract."""

        def diagnose(_run: str) -> Finding:
            self.diagnosed.append(name)
            return self.finding

        def launch(replace: bool) -> None:
            self.launched.append((name, replace))
            for run in runs.list_runs(self.agent, name):
                if replace and run.alive:
                    runs.stop_run(self.agent, run.id, grace=0.0)
            if name in self.comes_back:
                attempt = self.comes_back[name] = self.comes_back[name] + 1
                wait_for(lambda: self.hellos(name) == attempt, f"attempt {attempt}")
                return
            if self.slow:
                self.slow.wait(60)
                self.launched.append((name, True))
            if self.empties:
                shutil.rmtree(self.dumps(name))
            if name not in self.again:
                raise UnhealthyError(f"{name} does not come up")
            self.start(name, *self.again[name])

        return Place(name, str(self.dumps(name)), self.agent, Capture((1, 3), "pre-norm"), diagnose, launch)

    def job(self, *names: str, count: int = 40, **how: object) -> Job:
        """An extract of ``count`` prompts."""
        dice = random.Random(0)
        prompts = [Prompt(f"p{i}", i + 1, token_bytes([dice.randrange(200) for _ in range(5)])) for i in range(count)]
        job = Job(tuple(self.place(name) for name in names), self.folder / "p.jsonl", tuple(prompts), 4)
        return replace(job, **how)

    def hellos(self, name: str) -> int:
        """How often it came up."""
        (run,) = runs.list_runs(self.agent, name)
        return Path(run.log).read_bytes().count(b"up\n") + run.attempt - 1 if run.served else 0

    def lines(self, *names: str) -> Counter[str]:
        """How many whole dumps the manifests name, by id."""
        texts = [(self.dumps(name) / "manifest.jsonl").read_text() for name in names]
        found = [json.loads(line) for text in texts for line in text.splitlines()]
        return Counter(line["id"] for line in found if line["status"] == "ok")

    def asked(self, name: str) -> Counter[str]:
        """How often each was sent."""
        return Counter((self.dumps(name) / "asked").read_text().split())

    def assert_each_once(self, done: Extracted, *names: str, count: int = 40) -> None:
        """Every prompt has one dump, on one of the servers."""
        assert (done.samples, done.failures, done.stopped) == (count, (), None)
        assert self.lines(*names) == Counter({f"p{i}": 1 for i in range(count)})


@pytest.fixture
def site(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Nothing waits longer than it must."""
    monkeypatch.setattr(lanes, "BACKOFF_S", 0.01)
    return Site(agent, tmp_path)


def test_a_dead_server_is_told_with_its_verdict_and_what_is_left(site: Site) -> None:
    """Without --relaunch: the diagnosis, how much is done, and nothing is started."""
    site.start("a", "die=20")

    done = extract(site.job("a"), ignore)

    assert isinstance(done.stopped, UnhealthyError)
    assert f"server-died: it is gone; {done.samples} of 40 are done" in done.stopped.why
    assert done.servers[0].verdict == {"class": "server-died"}
    assert (site.diagnosed, site.launched, done.failures) == (["a"], [], ())
    assert 16 <= done.samples < 24


def test_a_server_whose_port_closes_before_it_ends_is_called_dead(site: Site) -> None:
    """Not running and unhealthy: its supervisor hears of the end a moment later than its clients."""
    site.start("a", "die=20", "lingers=700")

    done = extract(site.job("a"), ignore)

    assert done.stopped and "died: exit 9" in done.stopped.message


def test_a_dead_server_is_started_again_and_no_dump_is_made_twice(site: Site) -> None:
    """Also those that were written when it died, though nobody was told."""
    site.start("a", "die-done=20")
    site.again["a"] = ("die=14",)

    done = extract(site.job("a", relaunch=2), ignore)

    site.assert_each_once(done, "a")
    assert (done.servers[0].relaunched, len(done.servers[0].lost)) == (2, 2)
    assert site.launched == [("a", False), ("a", False)]


def test_health_is_asked_for_once_before_prompts_are_sent(site: Site) -> None:
    """A probe takes SGLang a second; after a loss it is asked again, whatever was found before."""
    site.start("a")
    extract(site.job("a"), ignore)
    assert (site.dumps("a") / "probes").read_text() == "."

    site.start("b", "die=20")
    site.again["b"] = ()
    done = extract(site.job("b", relaunch=1), ignore)

    site.assert_each_once(done, "b")
    assert (site.dumps("b") / "probes").read_text() == ".."


def test_a_server_that_does_not_come_back_is_tried_as_often_as_said(site: Site) -> None:
    """Then it ends, with what it died of last."""
    site.start("a", "die=5")

    done = extract(site.job("a", relaunch=3), ignore)

    assert done.stopped and "a does not come up" in done.stopped.message
    assert site.launched == [("a", False)] * 3


def test_a_server_that_its_policy_starts_again_is_waited_for(site: Site) -> None:
    """It does not count as a relaunch, and none is needed; what was under way is sent again."""
    site.start("a", "die=25", restart={"max": 3, "window": 600.0, "backoff": 0.05})
    site.comes_back["a"] = 1
    wait_for(lambda: runs.list_runs(site.agent, "a")[0].served, "its supervisor knows that it listens")

    done = extract(site.job("a"), ignore)

    site.assert_each_once(done, "a")
    assert (site.launched, done.servers[0].relaunched) == ([("a", False)], 0)


def test_a_hung_server_is_replaced(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes, /health says no, and the diagnosis agrees; what it had under way is done by the next one."""
    monkeypatch.setattr(lanes, "SILENT_S", 0.5)
    site.start("a", "hang=20")
    site.again["a"] = ()

    done = extract(site.job("a", relaunch=1), ignore)

    site.assert_each_once(done, "a")
    assert (site.launched, site.diagnosed) == ([("a", True)], ["a"])


def test_a_slow_server_is_left_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The diagnosis says slow: nothing is started, nothing is sent twice."""
    monkeypatch.setattr(lanes, "SILENT_S", 0.3)
    site.finding = Finding(False, "slow: a batch takes its time")
    run = site.start("a", "hang=5")
    notes: list[str] = []

    def emit(event: Event) -> None:
        if isinstance(event, Note) and "slow, not stuck" in event.message:
            notes.append(event.message)
            site.finding = DEAD

    monkeypatch.setattr("hsops.extract.place.FRESH_S", 0.0)
    done = extract(site.job("a"), emit)

    assert notes and done.stopped and site.launched == []
    assert runs.alive_run(site.agent, "a") and run.id == done.servers[0].run


def test_servers_share_a_list_and_a_dead_one_hands_on(site: Site) -> None:
    """What the dead one has done counts, the rest is the other's; a row for each says so; a rerun has nothing to do."""
    site.start("a", "die=8")
    site.start("b", f"holds={site.dumps('a')}/died")

    done = extract(site.job("a", "b", count=60), ignore)

    site.assert_each_once(done, "a", "b", count=60)
    dead, other = done.servers
    assert "died" in dead.error and (dead.samples, other.error) == (sum(site.lines("a").values()), "")
    assert dead.samples + other.samples == 60 and other.samples > 0
    again = extract(site.job("a", "b", count=60), ignore)
    assert (again.already, again.samples) == (60, 60)
    assert [row.already for row in again.servers] == [dead.samples, other.samples]


def test_a_launch_that_nobody_needs_any_more_is_not_waited_for(site: Site) -> None:
    """The other server has done the rest meanwhile."""
    site.slow = Event_()
    site.start("a", "die=8")
    site.start("b", f"holds={site.dumps('a')}/died")

    done = extract(site.job("a", "b", relaunch=1), ignore)
    waited = site.launched[1:]
    site.slow.set()

    site.assert_each_once(done, "a", "b")
    assert (site.launched[0], waited) == (("a", False), [])


def test_a_server_that_is_down_at_the_start_leaves_its_work_to_the_others(site: Site) -> None:
    """And with --relaunch it joins them."""
    asked = site.dumps("a") / "asked"
    site.start("b", f"holds={asked}")
    asked.parent.mkdir()
    asked.touch()

    done = extract(site.job("a", "b"), ignore)

    assert (done.samples, done.servers[1].samples, done.stopped) == (40, 40, None)
    asked.unlink()  # the other one waits for it now
    site.again["a"] = ()
    more = extract(site.job("a", "b", count=80, relaunch=1), ignore)
    assert more.samples == 80 and more.servers[0].samples > 0


def test_servers_that_capture_otherwise_do_not_share(site: Site) -> None:
    """Half of the data set would have other states; nothing is sent."""
    job = site.job("a", "b")
    other = replace(job.places[1], capture=Capture((1, 2), "pre-norm"))

    with pytest.raises(UsageError, match=r"a captures boundaries 1, 3.*; b captures boundaries 1, 2"):
        extract(replace(job, places=(job.places[0], other)), ignore)


def test_ctrl_c_says_what_is_left() -> None:
    """And how to go on; exit 130."""
    told = outcome(replace(EMPTY, prompts=9, samples=4, interrupted=True))

    assert (told.exit_code, told.data["interrupted"]) == (130, True)
    assert list(told.lines)[-1] == "interrupted: 5 are left; the same line again goes on with them"


def test_the_failed_prompts_are_written_to_a_file(tmp_path: Path) -> None:
    """A line of JSON each, with everything that is known; an empty file when there is none."""
    failure = Failure("p1", 2, 3, "a row is lost", "a", (Tried("a", 5.0, "a row is lost"),))

    told = outcome(replace(EMPTY, failures=(failure,)), tmp_path / "failed.jsonl")

    assert told.exit_code == 3
    assert [json.loads(line) for line in (tmp_path / "failed.jsonl").read_text().splitlines()] == [
        {"id": "p1", "line": 2, "attempts": 3, "reason": "a row is lost", "server": "a", "row": False, "tried": [
            {"server": "a", "time": 5.0, "reason": "a row is lost"}]}
    ]  # fmt: skip
    outcome(EMPTY, tmp_path / "failed.jsonl")
    assert (tmp_path / "failed.jsonl").read_text() == ""


def test_a_report_is_not_lost_with_the_file_of_its_failures() -> None:
    """The disk is full by the time that it is written."""
    told = outcome(replace(EMPTY, failures=(Failure("p1", 2, 3, "why", "a"),)), Path("/dev/full"))

    assert [error["message"] for error in told.errors] == [
        "--failures /dev/full was not written: No space left on device",
        "p1: why",
    ]
    assert outcome(EMPTY, Path("/dev/full/x")).exit_code == 1
    assert told.exit_code == 3 and "0 samples" in told.lines[0] and "/dev/full was not written" in "\n".join(told.lines)


def test_all_servers_dead_is_an_error_and_a_rerun_continues(site: Site) -> None:
    """The list is left where it was."""
    site.start("a", "die=8")
    site.start("b", "die=9")

    done = extract(site.job("a", "b"), ignore)
    assert isinstance(done.stopped, UnhealthyError) and done.samples < 40
    site.start("a")
    done = extract(site.job("a", "b"), ignore)

    site.assert_each_once(done, "a", "b")


def test_a_prompt_that_kills_its_server_is_found_by_itself(site: Site) -> None:
    """None of those that were under way with it is given up."""
    site.start("a", "poison=p5")
    site.again["a"] = ("poison=p5",)

    done = extract(site.job("a", relaunch=3), ignore)

    assert [(failure.id, failure.attempts) for failure in done.failures] == [("p5", 3)]
    assert (done.samples, done.stopped) == (39, None)
    assert done.servers[0].relaunched in (2, 3)  # not after the third death when all others were done by then


def test_dumps_that_are_gone_after_a_relaunch_are_no_success(site: Site) -> None:
    """Those that it made, and those that were done before; the rerun makes them again."""
    site.start("a", "die=20")
    site.again["a"] = ()
    assert extract(site.job("a", count=10), ignore).samples == 10
    site.empties = True

    done = extract(site.job("a", relaunch=1), ignore)

    assert done.stopped and "the dump folder was emptied" in done.stopped.message
    assert done.stopped.why.split()[0] in map(str, range(16, 24))  # four at once; three may pass while the 20th dies
    assert site.launched == [("a", False)]
    site.assert_each_once(extract(site.job("a"), ignore), "a")


def test_dumps_that_are_here_may_be_gone_on_the_host(site: Site) -> None:
    """Beside a fetch that brought them: only what is left is sent to the server that came back."""
    site.start("a", "die=20")
    site.again["a"] = ()
    site.empties, here = True, dict[str, Sample]()

    def emit(event: Event) -> None:
        if isinstance(event, Note) and "is started again" in event.message:
            here.update(list_samples(site.agent, str(site.dumps("a"))).samples)

    done = extract(site.job("a", relaunch=1, drained=Drained(site.folder, {}, lambda: None, lambda: here)), emit)

    assert (done.samples, done.failures, done.stopped) == (40, (), None)
    assert site.lines("a") == Counter({f"p{i}": 1 for i in range(40) if f"p{i}" not in here})
    assert 16 <= len(here) < 24


def test_what_helps_decides_what_is_done(site: Site) -> None:
    """A busy server is asked again, a failure is tried three times, a refusal is final; each with its reason."""
    site.start("a", "busy=6", "bad=p3", "refuse=p7")

    done = extract(site.job("a", count=12), ignore)

    assert [(f.id, f.line, f.attempts >= 3, f.reason) for f in done.failures] == [
        ("p3", 4, True, "a row is lost"),
        ("p7", 8, False, "HTTP 400: never this one"),
    ]
    assert done.samples == 10


def test_a_request_that_is_under_way_after_its_link_broke_is_waited_for(site: Site) -> None:
    """SGLang from 0.5.10 on refuses its id with 400 meanwhile: that is no fault of the prompt, whose dump is coming."""
    site.start("a", "cut=3")

    done = extract(site.job("a", count=12), ignore)

    assert (done.samples, done.failures, done.stopped) == (12, (), None)
    assert (site.dumps("a") / "again").exists()
    assert set(site.lines("a")) == {f"p{i}" for i in range(12)}


def test_tokens_under_way_stay_within_twice_what_the_server_holds(site: Site) -> None:
    """Sixteen could be under way, of five tokens each; it holds twelve tokens, and twelve more may wait for them."""
    site.start("a", "tokens=12", "pause=20")

    done = extract(site.job("a", concurrency=16), ignore)

    assert done.samples == 40
    assert int((site.dumps("a") / "most").read_text()) == 20


def test_attempts_are_written_down(site: Site) -> None:
    """Server, time and reason of each; the journal is asked for nothing else."""
    site.start("a", "bad=p3")
    job = site.job("a", count=5, journal=site.folder / "j.sqlite")

    (failure,) = extract(job, ignore).failures
    (again,) = extract(job, ignore).failures

    assert [(one.server, one.reason) for one in failure.tried] == [("a", "a row is lost")] * 3
    assert (again.attempts, again.tried[:3], len(again.tried)) == (3, failure.tried, 6)
    assert "sent 3 times, in earlier extracts 3 times" in "".join(lines(replace(EMPTY, failures=(again,))))
    journal = Journal(job.journal, ignore)
    assert [(one.server, one.reason) for one in journal.attempts(job.prompts[0])] == [("a", "")]
    assert journal.attempts(replace(job.prompts[3], tokens=token_bytes([1]))) == ()
    journal.close()


def spoil(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)


@pytest.mark.parametrize(
    "harm",
    [spoil, Path.unlink, lambda path: path.write_text("not a journal"), lambda path: (path.unlink(), path.mkdir())],
)
def test_a_journal_that_is_harmed_loses_and_doubles_nothing(site: Site, harm: Callable[[Path], object]) -> None:
    """Corrupt, deleted, something else, or a folder in its place: the manifest says what is done."""
    site.start("a", "die=20")
    job = site.job("a", journal=site.folder / "j.sqlite")
    extract(job, ignore)
    harm(job.journal)  # type: ignore[arg-type]
    site.start("a")

    done = extract(job, ignore)

    site.assert_each_once(done, "a")


def test_a_journal_that_says_otherwise_is_not_believed(site: Site) -> None:
    """Of another machine, or of before the dumps were removed: it names samples as done that are not there."""
    site.start("a")
    job = site.job("a", journal=site.folder / "j.sqlite")
    journal = Journal(job.journal, ignore)
    for prompt in job.prompts:
        journal.attempted(prompt, "a", "")

    done = extract(job, ignore)  # while somebody else has the journal open

    site.assert_each_once(done, "a")
    journal.close()


def test_one_prompts_file_goes_to_a_server_once_at_a_time(site: Site) -> None:
    """The second of this machine is refused before it sends anything; to another server it may go."""
    site.start("a")
    site.start("b")
    job = site.job("a", journal=site.folder / "j.sqlite")

    with (
        only_one(site.folder / "j.sqlite", "a", job.file),
        pytest.raises(LockedError, match=r"extracts .* to a already"),
    ):
        extract(job, ignore)
    with only_one(site.folder / "j.sqlite", "a", job.file):
        assert extract(site.job("b", journal=job.journal), ignore).samples == 40

    assert extract(job, ignore).samples == 40


def test_another_machines_dumps_count_while_it_goes_on(site: Site) -> None:
    """Two clients without a common lock: every prompt has its dump, neither fails, and few are made twice."""
    from threading import Thread

    site.start("a", "pause=5")
    ended: list[Extracted] = []
    threads = [Thread(target=lambda: ended.append(extract(site.job("a", count=80), ignore))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [(done.samples, done.failures, done.stopped) for done in ended] == [(80, (), None)] * 2
    assert set(site.lines("a")) == {f"p{i}" for i in range(80)}


@pytest.mark.parametrize("attempts, told", [(0, "not sent"), (1, "sent once"), (3, "sent 3 times")])
def test_a_failure_says_how_often_it_was_sent(attempts: int, told: str) -> None:
    """In words."""
    failure = Failure("p0", 1, attempts, "no", "a")

    assert f"  p0 (line 1, {told})  no" in list(lines(replace(EMPTY, failures=(failure,))))
