"""The figures of README.md: each is read from the measured page that it links to, so that none is older than that."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- figures: make docs -->\n", "<!-- end of figures -->"
FIGURES = (  # what is promised, the page, where its numbers are, how they are said, the command that measures them
    (
        "the rows are right",
        "matrix",
        (),
        "{releases} releases of SGLang at TP 2 against an independent forward: a sample is off by {worst} at most",
        "make matrix",
    ),
    (
        "a hang gets its name",
        "hangs",
        (
            r"(\d+) hangs and deaths: (\d+) right",
            r"Looks at servers that are well: (\d+), of which\s+(\d+) false alarms",
        ),
        "in the lab, on a CPU: {1} of {0} hangs and deaths named right; false alarms: {3} in {2} looks at well servers",
        "make hangs",
    ),
    (
        "slow is not stuck",
        "stalls",
        (r"(\d+) of \d+ launches ran: (\d+) healthy, (\d+) stall verdicts",),
        "{0} launches slowed on purpose: {1} healthy, {2} called stuck",
        "make stalls",
    ),
    (
        "nothing is lost",
        "ten-thousand",
        (r"\| dumps here \| ([\d,]*\d)", r"\| samples that failed \| (\d+)", r"\| exits of the client \| -9: (\d+)"),
        "{0} samples through a RAM disk too small for them, {1} failed; the client was killed {2} times, ranks too",
        "make ten-thousand",
    ),
    (
        "fast over a long line",
        "fetch-speed",
        (
            r"round trip 100 ms.*?\| scp \|[^|]*\|[^|]*\| ([\d.]+) \|",
            r"round trip 100 ms.*?\| rsync[^|]*\|[^|]*\|[^|]*\| ([\d.]+) \|",
            r"round trip 100 ms.*?\| hsops fetch \|[^|]*\|[^|]*\|[^|]*\|[^|]*\| (\d+) \|",
        ),
        "on a simulated line of 100 ms, medians of {2}: {0} times scp, {1} times rsync, every byte verified",
        "python -m benchmarks.fetch",
    ),
    (
        "capture costs little",
        "gpu",
        (r"\| prefill \|[^|]*\| yes \| ([\d,]+) tokens/s without capture, ([\d,]+) with it, ([\d.]+ %)",),
        "one H200, prefill: {1} tokens/s with capture, {0} without, {2}",
        "make gpu",
    ),
)
ALSO = {  # behind a row's own: another page that has something to say to the same promise
    "a hang gets its name": (
        "gpu",
        (
            r"(\d+) hangs and deaths: (\d+) right",
            r"Looks at servers that are well: (\d+), of which\s+(\d+) false alarms",
        ),
        "on one H200: {1} of {0} named right, false alarms: {3} in {2} looks",
    ),
}


def table() -> str:
    """The table, in Markdown."""
    lines = ["| promise | what was seen | measured by |", "|---|---|---|"]
    for promise, page, patterns, words, command in FIGURES:
        text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
        said = _matrix(text, words) if page == "matrix" else words.format(*_numbers(page, text, patterns))
        cell, commands = _link(said, page), f"`{command}`"
        if promise in ALSO:
            other, where, also = ALSO[promise]
            text = (ROOT / "docs" / "reference" / f"{other}.md").read_text(encoding="utf-8")
            cell += f"; {_link(also.format(*_numbers(other, text, where)), other)}"
            commands += f", `make {other}`"
        lines.append(f"| {promise} | {cell} | {commands} |")
    return "\n".join(lines) + "\n"


def _link(said: str, page: str) -> str:
    return f"[{said}](docs/reference/{page}.md)"


def readme() -> str:
    """README.md with the table as it is now."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + rest[rest.index(END) :]


def _numbers(page: str, text: str, patterns: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for pattern in patterns:
        match = re.search(pattern, text, re.DOTALL)
        if match is None:
            raise ValueError(f"docs/reference/{page}.md says nothing like {pattern!r}: scripts/figures.py reads it")
        found += match.groups()
    return found


def _matrix(text: str, words: str) -> str:
    """Of its table: how many releases, and the largest error of any boundary or final state."""
    rows = re.findall(r"^\| 0\.5\.\d+ \| [\w-]+ \|((?: [\d.]+e-\d+ \|){5})", text, re.MULTILINE)
    worst = max(float(cell) for row in rows for cell in row.split("|")[:-1])
    return words.format(releases=len(rows), worst=f"{worst:.1e}")
