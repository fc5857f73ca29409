"""What ``hsops diagnose`` is given by mistake, or by a machine that is not well: a verdict or a clear error, soon."""

from __future__ import annotations

import gzip
import io
import time
from pathlib import Path

import pytest

from hsops.cli.diagnose import Keep
from hsops.core.errors import BadDataError, UsageError
from hsops.diagnose import bundle, judge
from hsops.diagnose.gpus import used
from hsops.diagnose.log_file import digest
from hsops.diagnose.log_text import read_log
from hsops.diagnose.reading import from_log, from_probe
from hsops.render.paint import plain
from tests import diagnose_cases

DEATH = (
    b"[2026-11-29 17:44:16 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
    b"torch.OutOfMemoryError: CUDA out of memory.\n"
)
ARGUMENTS = b"[2026-11-29 17:40:00] server_args=ServerArgs(tp_size=%s, port=%s, dp_size=%s)\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 5000 + DEATH,
        DEATH.replace(b"torch", b"\0\0torch"),
        b"\x1b[31m" + DEATH.replace(b"CUDA", b"\x1b[1mCUDA\x1b[0m"),
        DEATH.replace(b"\n", b"\r\n"),
        b"Loading: 10%|#\rLoading: 20%|##\r" + DEATH,
        b"\xff\xfe\xc3( caf\xe9\n" * 3 + DEATH,
        DEATH + b"\x9b2J\xc2\x9b2J\x07" * 9,
        DEATH[:-1],
    ],
    ids=["hole", "nul", "colour", "crlf", "bars", "bytes", "bells", "no-end"],
)
def test_words_are_found_between_rubbish(data: bytes) -> None:
    """A file with a hole, colours, other line ends, another encoding: the cause is the cause, its rank the rank."""
    verdict = judge(from_log("server.log", b"x\n" + data, tp=2))

    assert (verdict.name, verdict.rank) == ("cuda-oom-kv", 1)
    assert all(finding.text.isprintable() for finding in verdict.evidence if finding.source != "last line")


@pytest.mark.parametrize("figure", [b"9" * 5000, "²".encode(), b"99999999999", b"-1", b"None", b"0"])
def test_figures_that_are_none(figure: bytes) -> None:
    """Arguments and tags of ranks that no server has: they are passed over."""
    text = ARGUMENTS % (figure, figure, figure) + DEATH.replace(b"TP1", b"TP" + figure)

    began = time.process_time()
    seen = from_log("server.log", text)

    assert judge(seen).name == "cuda-oom-kv"
    assert seen.tp < 1000 and time.process_time() - began < 2


def test_sizes_that_no_machine_has() -> None:
    """Of GPUs as of ranks."""
    assert len(used({"pp_size": "999999", "dp_size": "999999"}, 8, "")) == 1024


@pytest.mark.parametrize("data", [b" " * 300_000 + b"%", b"%" * 300_000, b"[" * 300_000, b"x" * 1_500_000], ids=len)
def test_a_line_without_an_end_takes_no_long_time(data: bytes) -> None:
    """Patterns that would take the square of its length."""
    began = time.process_time()

    judge(from_log("server.log", data))

    assert time.process_time() - began < 5


def test_an_empty_log_is_called_empty() -> None:
    """Not a log that stops somewhere."""
    verdict = judge(from_log("server.log", b""))

    assert verdict.name == "unknown"
    assert "empty" in verdict.summary


@pytest.mark.parametrize("data, kind", [(gzip.compress(DEATH), "gzip"), (DEATH.decode().encode("utf-16"), "UTF-16")])
def test_a_log_that_is_no_text_is_told_with_the_way_out(data: bytes, kind: str) -> None:
    """Rather than a verdict on nothing."""
    with pytest.raises(BadDataError, match=kind) as told:
        digest(io.BytesIO(data))

    assert "--log -" in told.value.fix


@pytest.mark.parametrize("changed", [-300.0, -3.0, 40.0])
def test_a_disk_whose_clock_is_ahead(changed: float) -> None:
    """A log that was written in the future: its own stamps tell how long it has been silent."""
    log = read_log("x", DEATH, now=1_795_974_296.0, started=1_795_974_200.0, changed=changed)

    assert log.silent_s == 40.0


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"null", b"1e999", b'"\xff"', b""])
def test_other_json_is_no_bundle(data: bytes) -> None:
    """However deep it is nested."""
    with pytest.raises(BadDataError):
        bundle.unpack(data, name="x")


def test_a_log_given_as_a_bundle_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's log may be larger than the memory here."""
    monkeypatch.setattr(bundle, "_LARGEST_WHOLE", 1000)
    file = io.BytesIO(DEATH * 1000)

    with pytest.raises(BadDataError, match="larger than any bundle"):
        bundle.read(file, name="server.log")

    assert file.tell() < 2000


@pytest.mark.parametrize("kept", [Keep(bundle=Path("server.log")), Keep(page=Path("link"))], ids=["save", "html"])
def test_what_is_read_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Keep) -> None:
    """Nor through a link."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.log").write_bytes(DEATH)
    (tmp_path / "link").symlink_to("server.log")

    with pytest.raises(UsageError, match="not written over"):
        kept.check(Path("server.log"))


def test_a_line_does_nothing_to_a_terminal() -> None:
    """Titles of processes and names of files come from anybody."""
    assert plain("TP0 \x1b]0;x\x07 \x9b2J\tdone\x7f") == "TP0 ?]0;x? ?2J\tdone?"


@pytest.mark.parametrize("kept", [[], "x", {"server": "x", "runs": "yz"}, {"server": "x", "runs": [[]]}, {"runs": 1}])
def test_a_baseline_of_another_shape_costs_nothing(kept: object) -> None:
    """It is another version's, or somebody's edit: the verdict is the one without it."""
    raw = diagnose_cases.raw(diagnose_cases.load("seeds-hang-no-baseline"))

    assert judge(from_probe(raw | {"baseline": kept}, tp=8)) == judge(from_probe(raw, tp=8))
