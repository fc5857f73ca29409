"""``hsops verify --live`` on the newest release, and with a prefix cache that nobody was told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.practice import MINUTES, practice
from tests.e2e.test_verify_live import IMITATED, ROOM, by_name, verify_live
from tests.fidelity import naive

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(20 * MINUTES)]


@pytest.mark.parametrize("sglang", ["0.5.23"])
def test_the_newest_release_passes(sglang: str, tmp_path: Path) -> None:
    """SGLang's own capture, under what only a GPU does; with both final states."""
    with practice(tmp_path, sglang=sglang, tp=2) as lab:
        lab.change("patches", "hs-dump", final="both")
        lab.change("servers", "tiny", args=ROOM, env={"HSOPS_LAB_IMITATE": IMITATED})
        lab.do("deploy", "--yes")
        lab.do("launch", "--wait-healthy", timeout=8 * MINUTES)

        code, data = verify_live(lab)

    found = by_name(data)
    assert (code, {name: check["status"] for name, check in found.items()}) == (0, dict.fromkeys(found, "pass"))
    assert data["states"][-2:] == ["final", "final after the norm"]
    assert found["batch"]["figures"]["pass_rows"]["batch"][0] > 2048


@pytest.mark.parametrize("sglang", ["0.5.9"])
def test_a_prefix_cache_fails_the_second_time(sglang: str, tmp_path: Path) -> None:
    """The same prompt again has no rows of its own; the first time it had."""
    with practice(tmp_path, sglang=sglang, tp=2) as lab:
        naive.install(lab.site)
        lab.change("servers", "tiny", args=ROOM, env={naive.RADIX: "1"})
        lab.do("deploy", "--yes")
        lab.do("launch", "--wait-healthy", timeout=8 * MINUTES)

        code, data = verify_live(lab)

    repeat = by_name(data)["repeat"]
    assert (code, repeat["status"]) == (1, "fail")
    assert "came from a cache" in repeat["reason"]
    assert "--disable-radix-cache" in repeat["fix"]
