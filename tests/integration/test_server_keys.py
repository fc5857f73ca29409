"""A server that was started with API keys: what talks to it shows them, and nobody else sees them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hsops.agent import procs
from hsops.core.baseline import Baseline
from hsops.core.dumps import token_bytes
from hsops.core.errors import UnhealthyError
from hsops.core.events import ignore
from hsops.core.prompts import Prompt
from hsops.core.runs import Keys, Run
from hsops.extract.extract import Job as Extract
from hsops.extract.extract import extract
from hsops.extract.place import Finding, Place
from hsops.extract.plan import Capture
from hsops.launch.wait import Healthy, Patience, wait_healthy
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.log import read_log
from hsops.remote.server import BrokenError, KeyRefusedError
from hsops.verify.live.verify import Job as Verify
from hsops.verify.live.verify import verify_live
from tests.running import VICTIMS
from tests.running import start as start_victim

KEY, ADMIN = "k3y-of-all", "k3y-of-admins"


def start(agent: Agent, folder: Path, *words: str) -> Run:
    """A run of a server with keys that is up."""
    env = {"PYTHONPATH": str(VICTIMS.parents[1]), "SGLANG_HS_DUMP_DIR": "{dump_dir}", "SGLANG_HS_RUN": "{run}"}
    kind = {"victim": "keyed.py", "server": "tiny", "tp": 1}
    run = start_victim(agent, "{port}", *words, env=env, dump_dir=str(folder), **kind)
    for piece in read_log(agent, run.id, follow=True):
        if b"up\n" in piece:
            return run
    raise AssertionError("it did not come up")


def job(agent: Agent, tmp_path: Path) -> Extract:
    """An extract of one prompt."""
    one = Prompt("a", 1, token_bytes([5, 6, 7]))
    sick = Finding(sick=True, words="")
    place = Place("tiny", "", agent, Capture((1, 3), "pre-norm"), lambda _: sick, lambda _: None)
    return Extract((place,), tmp_path / "p.jsonl", (one,), 1)


def wait_for(agent: Agent, run: Run, key: str) -> object:
    """As ``launch --wait-healthy`` does, for a minute."""
    return wait_healthy(
        [agent],
        run,
        baseline=Baseline("tiny"),
        patience=Patience(60.0),
        emit=ignore,
        fresh=True,
        api_key=key,
        goes_on=lambda _: False,
    )


def test_extract_shows_the_key_of_the_run(agent: Agent, tmp_path: Path) -> None:
    """The one that the server was started with, whatever the inventory says by now."""
    start(agent, tmp_path / "dumps", "--api-key", KEY)

    done = extract(job(agent, tmp_path), ignore)

    assert (done.samples, done.failures) == (1, ())


def test_verify_live_shows_the_keys_of_the_run(agent: Agent, tmp_path: Path) -> None:
    """Also that of its administrators, which SGLang wants for an abort once there is one."""
    start(agent, tmp_path / "dumps", f"--api-key={KEY}", "--admin-api-key", ADMIN)

    with pytest.raises(BrokenError, match="HTTP 500"):
        verify_live(agent, Verify("tiny", "none", {}), lambda _from, _to: None, ignore)

    asked = (tmp_path / "dumps/asked").read_text().split()
    assert asked == ["/health", "/server_info", "/generate", "/abort_request"]


def test_a_key_that_hsops_does_not_know_ends_an_extract_at_once(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come from a file of the host: no sample fails for it, one error says what to do."""
    start(agent, tmp_path / "dumps", "--api-key", KEY)
    monkeypatch.setattr(Run, "keys", Keys())

    with pytest.raises(KeyRefusedError, match="401: Unauthorized") as caught:
        extract(job(agent, tmp_path), ignore)

    assert "api-key in args of servers." in caught.value.fix


def test_launch_shows_the_key_too_and_says_when_it_is_not_enough(agent: Agent, tmp_path: Path) -> None:
    """A server that refuses hsops is up: it would be waited for until the timeout."""
    run = start(agent, tmp_path / "dumps", "--api-key", KEY)

    with pytest.raises(UnhealthyError, match="is up and refuses hsops: /generate says 401") as caught:
        wait_for(agent, run, "")

    assert "api-key in args of servers.tiny" in caught.value.fix
    assert isinstance(wait_for(agent, run, KEY), Healthy)


def test_a_key_lies_in_one_file_that_only_its_owner_reads(agent: Agent, tmp_path: Path) -> None:
    """Not in spec.json, which people copy into a report; the server has it, and so has who asks for the run."""
    run = start(agent, tmp_path / "dumps", "--api-key", KEY, f"--admin-api-key={ADMIN}")

    files = [path for path in Path(run.directory).iterdir() if path.is_file()]
    holding = [path for path in files if re.search(f"{KEY}|{ADMIN}".encode(), path.read_bytes())]
    spec = json.loads((Path(run.directory) / "spec.json").read_text())

    assert [path.name for path in holding] == ["secrets.json"] and holding[0].stat().st_mode & 0o777 == 0o600
    assert spec["argv"][-3:] == ["--api-key", "***", "--admin-api-key=***"]
    assert procs.argv(run.pid)[-3:] == ["--api-key", KEY, f"--admin-api-key={ADMIN}"]
    assert (run.keys.api, run.keys.admin) == (KEY, ADMIN)


def test_a_dead_server_is_not_told_with_its_key(agent: Agent) -> None:
    """The log's last line says why it died, and may be the one with all arguments."""
    run = start_victim(agent, f"say=server_args=ServerArgs(api_key='{KEY}')", "exit=3", tp=1)

    with pytest.raises(UnhealthyError) as caught:
        wait_for(agent, run, "")

    assert caught.value.why == "the log ends with: server_args=ServerArgs(api_key='***')"


def test_no_key_is_shown_to_people(agent: Agent, tmp_path: Path) -> None:
    """Not by what ``status`` and ``launch`` tell of a run, nor among the processes that ``stop`` has ended."""
    run = start(agent, tmp_path / "dumps", f"--api-key={KEY}", "--admin-api-key", ADMIN)

    stopped = runs.stop_run(agent, run.id, grace=0.0)
    told = json.dumps([run.as_json(), stopped.run.as_json(), stopped.ended]) + repr(run.keys)

    assert run.keys == Keys(KEY, ADMIN) and str(run.port) in told
    assert KEY not in told and ADMIN not in told


def test_a_key_whose_file_is_gone_is_still_the_servers(agent: Agent, tmp_path: Path) -> None:
    """Its command line has it, as long as it lives; of one that has ended no key is known, and none is made up."""
    run = start(agent, tmp_path / "dumps", "--api-key", KEY, f"--admin-api-key={ADMIN}")
    (Path(run.directory) / "secrets.json").unlink()

    (alive,) = runs.list_runs(agent, "tiny")
    ended = runs.stop_run(agent, run.id, grace=0.0).run

    assert alive.keys == Keys(KEY, ADMIN)
    assert ended.argv[-1] == "--admin-api-key=***" and ended.keys == Keys()
