"""``hsops stop``: exactly the run, whatever happens meanwhile, and proof that it is gone. Real processes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

from hsops.agent import audit, leases, procs, rundir, stop
from hsops.agent.protocol import Refusal
from hsops.core.errors import UnreachableError
from hsops.core.runs import Run
from hsops.lab import sshd
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.lock import Lock
from hsops.remote.pulse import Pulse
from hsops.remote.ssh import SshHost
from tests.gpu_tool import GpuTool
from tests.hosts import ServerFactory, run_dir
from tests.running import marked, start, wait_for

PATIENCE_S = 60.0


@pytest.fixture
def gpu_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuTool:
    """An nvidia-smi."""
    return GpuTool(tmp_path / "tool", monkeypatch)


def said(run: Run, text: str) -> str:
    """The log once it has said ``text``."""
    log = Path(run.log)
    wait_for(lambda: text in log.read_text(errors="replace"), f"{run.id} says {text}")
    return log.read_text(errors="replace")


def segment_of(run: Run) -> Path:
    """The file of a victim's shared memory."""
    match = re.search(r"segment (\S+)", said(run, "segment "))
    assert match
    return Path("/dev/shm") / match.group(1).lstrip("/")


def actions(agent: Agent) -> list[str]:
    """What the audit log has."""
    return [line["action"] for line in agent.call("audit-read", limit=100)["lines"]]


def test_a_stopped_supervisor_writes_the_end_and_goes(agent: Agent) -> None:
    """Somebody's SIGSTOP: the run seemed to run for ever, and its supervisor stayed."""
    run = start(agent, "say=up", "sleep")
    said(run, "up")
    pid, begun = json.loads((Path(run.directory) / "state.json").read_text())["supervisor"]
    os.kill(pid, signal.SIGSTOP)

    stopped = runs.stop_run(agent, run.id, grace=5.0)

    assert stopped.run.phase == "stopped" and stopped.left == () and stopped.run.exit
    assert not procs.is_alive(pid, begun)


def test_the_proof(agent: Agent, gpu_tool: GpuTool) -> None:
    """No process, the port free, the segment gone, the GPU's memory back: as figures, before and after."""
    run = start(agent, "rank=0", "shared=", "{port}", "say=up", "sleep")
    segment = segment_of(run)
    said(run, "up")
    gpu_tool.tell((run.pid, 72704), used=100)

    stopped = runs.stop_run(agent, run.id, grace=0.2)

    proof = stopped.proof
    assert proof and stopped.left == ()
    assert (proof.port, proof.port_holder) == (run.port, None)
    assert (proof.segments, proof.segments_left) == (1, ()) and not segment.exists()
    assert (proof.gpu_mib, proof.gpus, proof.held) == (72704, (("3", 72804, 100),), ())


def test_without_gpu_tools_the_proof_says_so(agent: Agent) -> None:
    """A host without nvidia-smi: nothing is known, and nothing is waited for."""
    run = start(agent, "sleep")

    stopped = runs.stop_run(agent, run.id)

    assert stopped.proof and stopped.proof.gpu_missing and "nvidia-smi" in stopped.proof.gpu_unknown


def test_gpu_memory_that_stays_names_its_holder(agent: Agent, gpu_tool: GpuTool) -> None:
    """The driver still lists the dead process: after the deadline it is said which GPU, how much, and who."""
    run = start(agent, "sleep")
    gpu_tool.tell((run.pid, 4096), stays=True)

    stopped = runs.stop_run(agent, run.id, gpu_s=0.3)

    assert stopped.left == () and stopped.proof
    (held,) = stopped.proof.held
    assert (held.gpu, held.mib, [one.pid for one in held.by]) == ("3", 4096, [run.pid])


def test_a_segment_whose_tracker_was_killed_is_removed(agent: Agent) -> None:
    """SGLang kills its own trackers when it is told to end: 24 MB of /dev/shm would stay of every run."""
    run = start(agent, "stubborn", "shared=", "say=up", "sleep")
    segment = segment_of(run)
    said(run, "up")
    (tracker,) = [pid for pid in marked(run.id) if "resource_tracker" in procs.title(pid)]

    os.kill(tracker, signal.SIGKILL)
    stopped = runs.stop_run(agent, run.id, grace=0.1)

    assert stopped.proof and stopped.proof.removed == (str(segment),)
    assert not segment.exists()


def test_a_semaphore_is_a_segment_too(agent: Agent) -> None:
    """A rank's progress bars make one; it is mapped under another name than its own."""
    run = start(agent, "stubborn", "semaphore", "say=up", "sleep")
    segment = segment_of(run)
    said(run, "up")
    assert segment.exists()
    for pid in marked(run.id):
        if "resource_tracker" in procs.title(pid):
            os.kill(pid, signal.SIGKILL)

    stopped = runs.stop_run(agent, run.id, grace=0.1)

    assert stopped.proof and stopped.proof.removed == (str(segment),) and not segment.exists()


def test_a_segment_that_somebody_else_has_stays(agent: Agent) -> None:
    """It is told, and not touched."""
    run = start(agent, "stubborn", "shared=", "say=up", "sleep")
    segment = segment_of(run)
    said(run, "up")
    mine = SharedMemory(segment.name)
    try:
        for pid in marked(run.id):
            if "resource_tracker" in procs.title(pid):
                os.kill(pid, signal.SIGKILL)
        stopped = runs.stop_run(agent, run.id, grace=0.1)

        assert stopped.proof and stopped.proof.segments_left == (str(segment),) and segment.exists()
    finally:
        mine.close()
        segment.unlink(missing_ok=True)


def test_a_decoy_survives_every_stop(agent: Agent) -> None:
    """The same command line and titles outside the run: by server, by run, with force, and when nothing is left."""
    run = start(agent, "stubborn", "rank=0", "rank=1", "say=up", "sleep")
    said(run, "up")
    decoy = subprocess.Popen(run.argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert decoy.stdout and decoy.stdout.readline() == "up\n"
        family = [decoy.pid, *(proc.pid for proc in procs.tree(decoy.pid))]
        assert len(family) == 3 and procs.title(decoy.pid) == procs.title(run.pid)

        stopped = [
            *runs.stop_server(Lock(agent, "test"), "victim", grace=0.1, force=True),
            *runs.stop_server(Lock(agent, "test"), "victim", grace=0.1),
            runs.stop_run(agent, run.id, grace=0.1),
        ]

        assert len(stopped) == 2 and len(stopped[0].ended) == 3 and stopped[1].ended == ()
        alive = [pid for pid in family if (proc := procs.look(pid)) and not proc.zombie]
        assert alive == family
    finally:
        for pid in [decoy.pid, *(proc.pid for proc in procs.tree(decoy.pid))]:
            os.kill(pid, signal.SIGKILL)
        decoy.communicate()


def test_two_stops_at_once(agent: Agent, tmp_path: Path) -> None:
    """One ends the run, the other waits for it and finds nothing; the audit log has one stop."""
    run = start(agent, "stubborn", "rank=0", "say=up", "sleep")
    said(run, "up")
    other = Agent(agent.host, python=sys.executable, state_dir=str(tmp_path / "state"), lock_wait=PATIENCE_S)
    agent.lock_wait = PATIENCE_S

    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(runs.stop_server, Lock(one, "hsops stop"), "victim", grace=0.5) for one in (agent, other)]
        found = [one.result() for one in asked]

    assert sorted(len(one) for one in found) == [0, 1]
    assert not marked(run.id) and actions(agent).count("stop") == 1


@pytest.mark.parametrize("force", [False, True], ids=["in-turn", "force"])
def test_a_run_that_another_client_just_starts(agent: Agent, tmp_path: Path, force: bool) -> None:
    """Its files are there and its server is not yet: stop ends it all the same, and does not say that nothing runs."""
    other = Agent(agent.host, python=sys.executable, state_dir=str(tmp_path / "state"), lock_wait=PATIENCE_S)
    other.call("clock")  # its agent is there

    with ThreadPoolExecutor() as pool:
        started = pool.submit(start, agent, "rank=0", "sleep")
        wait_for(lambda: list((tmp_path / "state/runs").glob("*/spec.json")), "a run begins")
        stopped = runs.stop_server(Lock(other, "hsops stop"), "victim", grace=1.0, force=force)
        run = started.result()

    assert [one.run.id for one in stopped] == [run.id] and stopped[0].left == ()
    assert not marked(run.id) and runs.list_runs(agent)[0].phase in ("stopped", "exited")


def test_the_network_drops_meanwhile(new_server: ServerFactory) -> None:
    """The client is told that it goes on there; it does, to its end, and the next stop says that nothing runs."""
    server = new_server("dropped")
    host = SshHost(server.spec, pulse=Pulse(every=0.3, lost_after=1.5))
    agent = Agent(host, python=sys.executable, state_dir=server.spec.state_dir)
    run = start(agent, "stubborn", "rank=0", "say=up", "sleep")
    said(run, "up")
    events = Path(run.directory) / "events.jsonl"

    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(runs.stop_run, agent, run.id, grace=3.0)
        wait_for(lambda: '"stopping"' in events.read_text(), "it has begun")
        running = sshd.status(server.folder)
        assert running
        for process in psutil.Process(running.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                if process.name().startswith("sshd"):
                    process.kill()
        with pytest.raises(UnreachableError) as caught:
            stopping.result()

    wait_for(lambda: "stop" in actions(agent), "the agent ends it without us")
    assert "goes on there without us" in caught.value.fix
    assert not marked(run.id)
    assert runs.stop_server(Lock(agent, "hsops stop"), "victim") == ()
    host.close()


def test_what_the_operator_sees(agent: Agent, tmp_path: Path, gpu_tool: GpuTool) -> None:
    """A line for each proof; exit 7 with the holder when the memory does not come back; --json has the same."""
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(
        f"hosts:\n  box: {{ ssh: local, python: {sys.executable}, state_dir: {tmp_path}/state }}\n"
        "servers:\n  victim: { host: box, model: none }\n"
    )

    def hsops(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "hsops", "-i", str(inventory), *words]
        return subprocess.run(
            argv, env=run_dir(), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100, check=False
        )

    first = start(agent, "{port}", "say=up", "sleep")
    said(first, "up")
    gpu_tool.tell((first.pid, 72704))
    well = hsops("stop")
    second = start(agent, "sleep")
    gpu_tool.tell((second.pid, 4096), stays=True)
    badly = hsops("stop", "--gpu-wait", "0.2", "--json")
    again = hsops("stop")

    assert well.returncode == 0, well.stdout + well.stderr
    for words in ("processes  none left", f"{first.port} is free", "71 GiB back after", "GPU 3: 71 GiB -> 0 MiB"):
        assert words in well.stdout
    told = json.loads(badly.stdout.splitlines()[-1])
    assert badly.returncode == 7 and told["data"]["stopped"][0]["proof"]["held"][0]["gpu"] == "3"
    assert "GPU 3: 4.0 GiB is not back" in told["errors"][0]["message"] and str(second.pid) in told["errors"][0]["why"]
    assert (again.returncode, again.stdout) == (0, "nothing is running\n")


def test_a_full_state_folder(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is ended and the way out is told; with force the server ends, and its supervisor starts no other."""
    run = start(agent, "rank=0", "{port}", "say=up", "sleep", restart={"max": 3, "window": 600.0, "backoff": 0.1})
    said(run, "up")
    path = Path(run.directory) / "state.json"
    wait_for(lambda: json.loads(path.read_text())["served"], "its supervisor knows that it serves")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    asked = {"state_dir": str(tmp_path / "state"), "run": run.id, "grace": PATIENCE_S}
    with monkeypatch.context() as patch:  # the verb runs here: it must meet a disk that only it finds full
        for module, name in ((leases, "write"), (audit, "append"), (rundir, "write_json")):
            patch.setattr(module, name, full)
        patch.setattr(stop, "outlive_client", lambda: None)
        with pytest.raises(Refusal) as caught:
            stop.stop(dict(asked))
        there = marked(run.id)
        told = stop.stop({**asked, "lock": {"force": True}})

    assert caught.value.code == "disk-full" and run.pid in there
    assert [row["pid"] for row in told["stopped"][0]["ended"] if row["by"] == "TERM"] == [run.pid]
    assert len(told["unwritten"]) == 4 and all("No space left" in line for line in told["unwritten"])
    assert not marked(run.id) and not procs.is_alive(*json.loads(path.read_text())["supervisor"])
