"""The timeline of a report: what each rank did when, against good runs. An SVG; no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from hsops.core.milestone_table import BY_ID, MILESTONES, STAGES
from hsops.core.units import clock
from hsops.diagnose.evidence import Evidence

_WIDTH, _LEFT, _ROW, _BAR = 1000, 90, 24, 14
_TICKS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400)
_MOST_RANKS = 64
_WORTH_S = 0.5  # shorter pieces get this length, to be seen


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a row, in seconds since the first line: the stage under way, or ``silent``."""

    stage: str
    begin: float
    end: float
    text: str


def timeline(ev: Evidence) -> str:
    """Rows of ranks, the server's own and good runs; empty without stamps in the log."""
    rows = list(_rows(ev))
    end = max((piece.end for _, pieces in rows for piece in pieces), default=0.0)
    if not end:
        return ""
    height = _ROW * len(rows) + 24
    scale = (_WIDTH - _LEFT - 10) / end
    drawn = [_axis(end, scale, height)]
    for number, (label, pieces) in enumerate(rows):
        top = number * _ROW
        drawn.append(f'<text x="0" y="{top + 15}">{escape(label)}</text>')
        drawn += [_piece(piece, top, scale) for piece in pieces]
    words = "milestones of each rank over time, against good runs"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{words}">'
        + "".join(drawn)
        + "</svg>"
        + _legend(rows)
    )


def _rows(ev: Evidence) -> Iterator[tuple[str, list[Piece]]]:
    if not ev.log or ev.log.summary.first_time is None:
        return
    good = _good(ev)
    if good:
        yield "good runs", good
    summary, zero = ev.log.summary, ev.log.summary.first_time
    now = (summary.last_time or zero) - zero + max(0.0, ev.silent_s - ev.log.waited_s)
    own = _marks(ev, "")
    ranks = {rank: _marks(ev, rank) for rank in summary.ranks[:_MOST_RANKS]}
    latest = max((time for marks in (own, *ranks.values()) for time, _ in marks), default=0.0)
    if own:
        yield "server", _pieces(own, now, ev, since=latest)
    for rank, marks in ranks.items():
        yield rank, _pieces(marks, now, ev, own)


def _marks(ev: Evidence, rank: str) -> list[tuple[float, str]]:
    """When it reached which milestone, in seconds since the first line."""
    assert ev.log and ev.log.summary.first_time is not None
    zero = ev.log.summary.first_time
    found = [(ranks[rank].time, name) for name, ranks in ev.log.summary.reached.items() if rank in ranks]
    return sorted((time - zero, name) for time, name in found if time is not None)


def _pieces(
    marks: Sequence[tuple[float, str]],
    now: float,
    ev: Evidence,
    own: Sequence[tuple[float, str]] = (),
    *,
    since: float = 0.0,
) -> list[Piece]:
    """From milestone to milestone; then ``silent``, not before ``since``, unless the server was ready."""
    pieces: list[Piece] = []
    at = 0.0
    for time, name in marks:
        if time > at or not pieces:
            pieces.append(Piece(BY_ID[name].stage, at, time, f"{name} after {clock(time)}"))
        at = time
    ready = next((time for time, name in (*own, *marks) if name == "ready"), None)
    if ready is not None:
        return [*pieces, Piece("ready", at, max(ready, at, now if not ev.live else at), "served")]
    begin = max(at, since)
    if now > begin:
        pieces.append(Piece("silent", begin, now, f"nothing for {clock(now - begin)}"))
    return pieces


def _good(ev: Evidence) -> list[Piece]:
    """Good runs of this server, each milestone when the last rank had reached it; from the first line on."""
    if not ev.baseline or not ev.baseline.runs:
        return []
    times = sorted((t, m.id) for m in MILESTONES if (t := ev.baseline.seconds_to(m.id)) is not None)
    if not times:
        return []
    zero, pieces, at = ev.baseline.seconds_to("arguments") or 0.0, [], 0.0
    for time, name in times:
        pieces.append(Piece(BY_ID[name].stage, at, time - zero, f"good runs: {name} after {clock(time - zero)}"))
        at = time - zero
    return pieces


def _piece(piece: Piece, top: int, scale: float) -> str:
    begin = _LEFT + piece.begin * scale
    width = max((piece.end - piece.begin) * scale, min(_WORTH_S * scale, 3.0))
    kind = piece.stage.replace(" ", "-")
    return (
        f'<rect class="s-{kind}" x="{begin:.1f}" y="{top + 4}" width="{width:.1f}" height="{_BAR}" rx="2">'
        f"<title>{escape(piece.text)}</title></rect>"
    )


def _axis(end: float, scale: float, height: int) -> str:
    step = next((tick for tick in _TICKS if end / tick <= 8), _TICKS[-1])
    found = []
    at = 0.0
    while at <= end:
        x = _LEFT + at * scale
        found.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 20}"/>')
        found.append(f'<text class="tick" x="{x:.1f}" y="{height - 5}">{clock(at)}</text>')
        at += step
    return "".join(found)


def _legend(rows: Sequence[tuple[str, Sequence[Piece]]]) -> str:
    seen = {piece.stage for _, pieces in rows for piece in pieces}
    names = [name for name in (*STAGES, "ready", "silent") if name in seen]
    keys = "".join(f'<span><i class="k-{name.replace(" ", "-")}"></i>{escape(name)}</span>' for name in names)
    return f'<p class="legend">{keys}</p>'
