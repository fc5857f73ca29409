"""A diagnosis as one page that needs nothing else: no script, no network, light or dark as the reader's screen is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from hsops.core.secret import without_keys
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.processes import Process
from hsops.diagnose.stack_tree import Node, tree
from hsops.diagnose.verdict import Verdict
from hsops.diagnose.waits import state_of
from hsops.render.report_style import STYLE
from hsops.render.report_time import timeline

_SHOWN = {"processes", "threads", "stacks", "tree", "gpus"}  # sources that the charts show better
_MOST = 64
_FULL = 100.0
_MANY = 10_000  # system calls a second: what an idle scheduler makes


def page(verdict: Verdict, ev: Evidence, *, server: str = "", version: str = "") -> str:
    """The whole page.

    Args:
        server: its name, for the title.
        version: of hsops.
    """
    what = server or verdict.host or "a log"
    parts = [
        ("Timeline", timeline(ev)),
        ("CPU", _cpu(ev)),
        ("System calls of main threads", _calls(ev)),
        ("GPUs", _gpus(ev)),
        ("Stacks of all ranks, merged", _stacks(ev)),
        ("Evidence", _evidence(verdict)),
        ("Last lines", _last_lines(ev)),
    ]
    sections = "".join(f"<section><h2>{title}</h2>{body}</section>" for title, body in parts if body)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(verdict.name)}: {escape(what)}</title><style>{STYLE}</style></head><body>"
        f"{_head(verdict, what)}{sections}<footer>hsops {escape(version)}</footer></body></html>\n"
    )


def _head(verdict: Verdict, what: str) -> str:
    rank = f" · TP{verdict.rank}" if verdict.rank is not None else ""
    host = f" · {verdict.host}" if verdict.host and verdict.host != what else ""
    rows = [("try", verdict.remedy), ("look", verdict.next_probe), ("or", ", ".join(verdict.alternatives))]
    advice = "".join(f"<dt>{label}</dt><dd>{escape(text)}</dd>" for label, text in rows if text)
    return (
        f'<header class="{verdict.word.lower()}"><p class="where">{escape(what)}{escape(host)}{rank}</p>'
        f"<h1><b>{verdict.word}</b> {escape(verdict.name)}</h1>"
        f'<p class="sure">confidence {escape(verdict.confidence)} · family {escape(verdict.family)}</p>'
        f"<p>{escape(verdict.summary)}</p>{f'<dl>{advice}</dl>' if advice else ''}</header>"
    )


def _cpu(ev: Evidence) -> str:
    """One bar a process; a whole core is marked."""
    shown = [p for p in _workers(ev) if p.activity]
    top = max([_FULL, *(p.activity.cpu for p in shown if p.activity)])
    rows = [
        _bar(p.label, p.activity.cpu / top, f"{p.activity.cpu:.0f} %", f"{p.state} {state_of(p)}")
        for p in shown
        if p.activity
    ]
    return _bars(rows)


def _calls(ev: Evidence) -> str:
    """One row a rank: how many calls a second, and of which kinds. Healthy and hung differ by powers of ten."""
    rows = []
    for p in list(ev.ranks.values())[:_MOST]:
        if p.trace:
            top = [(f"{call} to {target}" if target else call, n) for call, target, n in p.trace.top[:4]]
            kinds = ", ".join(f"{n:,} \u00d7 {what}" for what, n in top)
            share = math.log10(1 + p.trace.rate) / math.log10(_MANY)
            rows.append(_bar(p.label, share, f"{p.trace.rate:,.0f}/s", kinds or "none"))
    hint = (
        f'<p class="note">Logarithmic, to {_MANY:,}/s. An idle scheduler makes thousands a second; one that spins '
        "makes hardly any.</p>"
    )
    return _bars(rows) + hint if rows else ""


def _gpus(ev: Evidence) -> str:
    rows = [
        _bar(f"GPU {g.index}", (g.util or 0) / _FULL, f"{g.util or 0:.0f} %",
             f"{g.power or 0:.0f} of {g.power_limit or 0:.0f} W, {g.memory or 0:,.0f} MiB"
             + (", waits for a peer" if g.spins else ""))
        for g in ev.gpus[:_MOST]
    ]  # fmt: skip
    return _bars(rows)


def _stacks(ev: Evidence) -> str:
    nodes = tree({rank: p.looks for rank, p in ev.ranks.items()})
    return f'<ul class="tree">{"".join(_nodes(nodes))}</ul>' if nodes else ""


def _nodes(nodes: Sequence[Node]) -> Iterator[str]:
    """A chain that nobody leaves is folded into one entry, its outer frames into a detail of it."""
    for first in nodes:
        node, passed = first, []
        while len(node.below) == 1 and node.below[0].looks == node.looks:
            passed.append(node.frame)
            node = node.below[0]
        outer = "".join(f"<li>{escape(str(frame))}</li>" for frame in passed)
        many = f"{len(passed)} frame{'s' if len(passed) > 1 else ''} above"
        folded = f"<details><summary>{many}</summary><ol>{outer}</ol></details>" if passed else ""
        below = f"<ul>{''.join(_nodes(node.below))}</ul>" if node.below else ""
        yield f"<li><b>{escape(node.who)}</b> <code>{escape(str(node.frame))}</code>{folded}{below}</li>"


def _evidence(verdict: Verdict) -> str:
    rows = [f for f in verdict.evidence if f.source not in _SHOWN]
    cells = "".join(f"<tr><th>{escape(f.source)}</th><td>{escape(f.text)}</td></tr>" for f in rows)
    return f"<table>{cells}</table>" if cells else ""


def _last_lines(ev: Evidence) -> str:
    if not ev.log or not ev.log.news:
        return ""
    return f"<pre>{escape(without_keys(chr(10).join(row[:400] for row in ev.log.news)))}</pre>"


def _workers(ev: Evidence) -> list[Process]:
    return [*list(ev.ranks.values())[:_MOST], *(p for p in (ev.launcher, ev.detokenizer) if p)]


def _bar(label: str, share: float, figure: str, note: str) -> str:
    width = 100 * max(0.0, min(1.0, share))
    return (
        f'<div class="bar"><span class="label">{escape(label)}</span>'
        f'<span class="track"><span class="fill" style="width:{width:.1f}%"></span></span>'
        f'<span class="figure">{escape(figure)}</span><span class="note">{escape(note)}</span></div>'
    )


def _bars(rows: Iterable[str]) -> str:
    found = "".join(rows)
    return f'<div class="bars">{found}</div>' if found else ""
