"""Progress lines say how far, how fast and how long, and no more often than is useful."""

import io
import sys

import pytest

from hsops.core.events import Note, Progress, Together
from hsops.core.units import count, size
from hsops.render.console import Console
from hsops.render.progress import Pace, clock, line


def test_a_line_names_done_total_rate_and_time_to_go():
    """Counts carry thousands separators and their unit."""
    event = Progress("extract", 6212, 10000, "samples", rate=4.24, eta_s=890, detail="0 failed")

    assert line(event) == "extract  6,212 / 10,000 samples · 4.2 samples/s · 14:50 to go · 0 failed"


def test_bytes_are_shown_in_binary_units():
    """A fetch shows GiB and MiB/s."""
    event = Progress("fetch", 569 * 2**30, 924 * 2**30, "bytes", rate=1.02 * 2**30)

    assert line(event) == "fetch  569 GiB / 924 GiB · 1.02 GiB/s"


def test_an_unknown_total_is_not_invented():
    """Without a total there is no share and no time to go."""
    assert line(Progress("pip", 3, 0, "packages")) == "pip  3 packages"


@pytest.mark.parametrize(
    "count,expected", [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (150 * 2**20, "150 MiB"), (5 * 2**40, "5 TiB")]
)
def test_size(count, expected):
    """Sizes round to three figures."""
    assert size(count) == expected


@pytest.mark.parametrize("seconds,expected", [(9.4, "0:09"), (890, "14:50"), (7390, "2:03:10"), (-1, "0:00")])
def test_clock(seconds, expected):
    """Times read like a clock."""
    assert clock(seconds) == expected


def test_a_pipe_gets_the_first_the_last_and_one_line_in_ten_seconds():
    """A thousand events a second do not fill a log."""
    times = iter([0.0, 1.0, 9.9, 10.0, 10.1])
    pace = Pace(lambda: next(times))

    shown = [pace.wants(Progress("fetch", done, 5, "files")) for done in (0, 1, 2, 3, 5)]

    assert shown == [True, False, False, True, True]


@pytest.mark.parametrize(
    "number,expected",
    [(0, "0"), (9999, "9,999"), (12_345, "12.3 k"), (999_700, "1 M"), (17_300_000, "17.3 M"), (5 * 10**9, "5 G")],
)
def test_counts(number, expected):
    """Counts round to three figures once they are long."""
    assert count(number) == expected


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_things_that_go_on_together_have_a_live_line_each(monkeypatch):
    """In their order, rewritten in place; a note goes above; afterwards the one live line is back."""
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    console = Console("run", as_json=False, color=False)

    console.emit(Together(("extract", "fetch")))
    console.emit(Progress("fetch", 1, 0, "files"))
    console.emit(Progress("extract", 3, 9, "samples"))
    console.emit(Note("a stream was lost"))
    console.emit(Progress("fetch", 2, 0, "files"))
    console.emit(Together())
    console.emit(Progress("verify", 1, 9, "files"))

    assert screen.getvalue() == (
        "fetch  1 files\n"
        "\x1b[1F\x1b[Jextract  3 / 9 samples\nfetch  1 files\n"
        "\x1b[2F\x1b[Ja stream was lost\n"
        "extract  3 / 9 samples\nfetch  2 files\n"
        "\r\x1b[Kverify  1 / 9 files"
    )


def test_in_a_pipe_each_of_them_has_its_own_lines(monkeypatch):
    """No cursor movement, and nothing that says that they go on together."""
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    console = Console("run", as_json=False, color=False)

    for event in (
        Together(("extract", "fetch")),
        Progress("extract", 3, 9, "samples"),
        Progress("fetch", 2, 0, "files"),
    ):
        console.emit(event)

    assert pipe.getvalue() == "extract  3 / 9 samples\nfetch  2 files\n"
