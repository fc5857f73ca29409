"""hsops extract as it is typed: several servers, a pipe, Ctrl-C, the file of failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hsops.core.inventory import HostSpec
from hsops.remote.agent import Agent
from tests.fetching import ROOT
from tests.integration.test_extract_servers import Site
from tests.running import wait_for

SERVERS = """\
servers:
  a: { host: here, model: /m, patches: [hs-dump] }
  b: { host: here, model: /m, patches: [hs-dump] }
  other: { host: here, model: /m }
patches: { hs-dump: { boundaries: [1, 3] } }
"""


@pytest.fixture
def site(agent: Agent, tmp_path: Path, write_inventory: Callable[..., Path]) -> Site:
    """An inventory of two servers that capture and one that does not."""
    where = {"state_dir": str(tmp_path / "state"), "dumps": str(tmp_path)}
    write_inventory(HostSpec(name="here", ssh="local", python=sys.executable, **where), more=SERVERS)
    lines = [json.dumps({"id": f"p{i}", "input_ids": [i, 1, 2]}) + "\n" for i in range(30)]
    (tmp_path / "p.jsonl").write_text("".join(lines))
    return Site(agent, tmp_path)


def begin(site: Site, *words: str) -> subprocess.Popen[str]:
    """``hsops WORDS`` in the site's folder."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(site.folder / "home")}
    return subprocess.Popen(
        [sys.executable, "-m", "hsops", *words], cwd=site.folder, env=env, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_every_server_of_the_hosts_that_captures_takes_part(site: Site) -> None:
    """With a row each, lines for a pipe, a file of failures, and what to type next."""
    site.start("a", "bad=p3", f"holds={site.dumps('b')}/asked")
    site.start("b", "bad=p3", f"holds={site.dumps('a')}/asked")

    process = begin(site, "--host", "here", "extract", "p.jsonl", "--failures", "failed.jsonl", "--concurrency", "2")
    out, err = process.communicate(timeout=200)

    assert process.returncode == 3, err
    first, head, row_a, row_b, failure, last = out.splitlines()
    assert first.startswith("29 samples · 87 tokens · ") and "1 error " in first
    assert head.split() == ["server", "host", "before", "now", "tokens", "size"]
    assert [row.split()[:3] for row in (row_a, row_b)] == [["a", "here", "0"], ["b", "here", "0"]]
    assert "p3 (line 4, sent 3 times)  a row is lost" in failure
    assert last == "next: the same line again tries what is missing"
    (told,) = [json.loads(line) for line in (site.folder / "failed.jsonl").read_text().splitlines()]
    assert (told["id"], len(told["tried"])) == ("p3", 3)
    assert "/ 30 samples · " in err and " tokens/s · " in err and " failed" in err


def test_ctrl_c_leaves_what_the_same_line_goes_on_with(site: Site) -> None:
    """Exit 130 within seconds, though the server does not answer; the figures, and what is left."""
    site.start("a", "hang=11")

    process = begin(site, "extract", "p.jsonl", "-s", "a", "--concurrency", "2")
    wait_for(lambda: (site.dumps("a") / "asked").exists() and site.asked("a").total() >= 11, "the server hangs", 200)
    wait_for(lambda: sum(site.lines("a").values()) == 10, "ten dumps", 200)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)

    assert (process.returncode, "Traceback" in err) == (130, False), err
    assert out.splitlines()[-1].endswith(" are left; the same line again goes on with them")


def test_the_prompts_are_not_written_over_by_the_failures(site: Site) -> None:
    """Exit 2, and the prompts are as they were."""
    before = (site.folder / "p.jsonl").read_bytes()

    process = begin(site, "extract", "p.jsonl", "-s", "a", "--failures", "p.jsonl", "--json")
    out, _ = process.communicate(timeout=200)

    assert process.returncode == 2
    assert "--failures p.jsonl is where the prompts are" in json.loads(out)["errors"][0]["message"]
    assert (site.folder / "p.jsonl").read_bytes() == before
