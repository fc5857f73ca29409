"""A server log (bytes, cut anywhere, still growing) becomes a ``LogSummary``: ``LogReader`` or ``summarize``."""

from __future__ import annotations

import re

from hsops.core.log_capture import CaptureLines
from hsops.core.log_errors import ErrorReader
from hsops.core.log_lines import MAIN, LineReader, Record
from hsops.core.log_summary import Bar, LogSummary, Mark
from hsops.core.milestone_table import ONCE, milestones_of

__all__ = ["Bar", "LogReader", "LogSummary", "Mark", "summarize", "template"]

_BAR = re.compile(
    r"^(?P<caption>.*?):?\s*(?P<percent>\d{1,3})%(?: Completed)? ?\|(?:[^|]*\|)? *(?:(?P<done>\d+)/(?P<total>\d+))?"
)
_BLANK = re.compile(
    r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|\b[0-9a-f]{16,}\b"  # addresses, quoted words, hashes
    r"|(?:/[\w.+-]+){2,}/?|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"  # paths, figures
)
_PROBE = re.compile(
    r'"GET /(health(_generate)?|metrics|v1/loads|get_load) HTTP/'
    r"|^Endpoint '/get_load' is|^Health check failed\. Server couldn"
)
_WIDEST = 2000  # of a bar; the pattern takes the square of a line's length where that is blank
_DIGITS = 6
_ARGUMENT = re.compile(r"(?P<key>\w+)'?[=:] ?(?:'(?P<text>[^']*)'|(?P<word>[^\s,)}]+))")
_WANTED = frozenset(
    [
        "model_path",
        "tp_size",
        "pp_size",
        "base_gpu_id",
        "gpu_id_step",
        "dp_size",
        "host",
        "port",
        "device",
        "disable_cuda_graph",
        "disable_radix_cache",
        "skip_server_warmup",
        "skip_tokenizer_init",
        "speculative_algorithm",
        "chunked_prefill_size",
        "watchdog_timeout",
        "attention_backend",
        "load_format",
        "quantization",
        "context_length",
        "nnodes",
        "node_rank",
        "moe_runner_backend",
        "kv_cache_dtype",
        "enable_return_hidden_states",
        "enable_dp_attention",
        "enable_pdmux",
        "tokenizer_worker_num",
        "disable_custom_all_reduce",
    ]
)


class LogReader:
    """An incremental reader. Tolerates cuts anywhere, carriage returns, colours and lines without ``[.. TPn]``.

    Args:
        tp: ranks to expect when the log does not say.
        sglang: the version, when known; only passed on to the summary.
    """

    TEMPLATES = 1000  # kinds of message kept apart; the rest counts as "..."

    def __init__(self, *, tp: int | None = None, sglang: str = "") -> None:
        self._lines, self._errors, self._capture = LineReader(), ErrorReader(), CaptureLines()
        self._tp, self._sglang = tp, sglang
        self._reached: dict[str, dict[str, Mark]] = {}
        self._rank_lines: dict[str, int] = {}
        self._templates: dict[str, dict[str, int]] = {}
        self._kinds: dict[str, dict[str, tuple[int, str]]] = {}
        self._bars: dict[str, Bar] = {}
        self._args: dict[str, str] = {}
        self._last: dict[str, tuple[int, str]] = {}
        self._first_time: float | None = None
        self._last_time: float | None = None
        self._highest = -1  # of the TP tags seen
        self._probe_lines = self._messages = 0

    def feed(self, data: bytes) -> None:
        """Read on."""
        for record in self._lines.feed(data):
            self._take(record)

    def summary(self) -> LogSummary:
        """What is known now; a bar that has not broken its line is included."""
        bars = dict(self._bars)
        for record in self._lines.tail():
            if bar := _bar(record):
                bars[bar.caption] = bar
        return LogSummary(
            lines=self._lines.lines,
            bytes=self._lines.bytes,
            probe_lines=self._probe_lines,
            messages=self._messages,
            reached={name: dict(marks) for name, marks in self._reached.items()},
            rank_lines=dict(self._rank_lines),
            templates={text: dict(counts) for text, counts in self._templates.items()},
            kinds={rank: dict(kinds) for rank, kinds in self._kinds.items()},
            bars=bars,
            errors=tuple(self._errors.found),
            args=dict(self._args),
            tp=self._expected(),
            port=number(self._args.get("port", "")),
            sglang=self._sglang,
            first_time=self._first_time,
            last_time=self._last_time,
            last=dict(self._last),
            capture=CaptureLines(dict(self._capture.unimported), dict(self._capture.refusals)),
        )

    def _expected(self) -> int:
        return number(self._args.get("tp_size", "")) or self._tp or max(1, self._highest + 1)

    def _take(self, record: Record) -> None:
        if bar := _bar(record):
            self._bars[bar.caption] = bar
            self._count(record, f"{bar.caption}: #%")
            return
        if record.time is not None:
            self._first_time = record.time if self._first_time is None else self._first_time
            self._last_time = record.time
        if record.rank:
            self._highest = max(self._highest, int(record.rank[2:]))
        self._errors.feed(record)
        self._capture.feed(record)
        if not record.text:
            return
        self._last[record.rank] = (record.line, record.text[:500])
        self._count(record, template(record.text))
        self._mark(record)

    def _mark(self, record: Record) -> None:
        for milestone in milestones_of(record.text):
            if milestone.id == "arguments" and not self._args:
                self._args = _arguments(record.text)
            rank = MAIN
            if milestone.scope != ONCE:
                rank = record.rank or ("TP0" if self._expected() == 1 else MAIN)
            self._reached.setdefault(milestone.id, {}).setdefault(rank, Mark(record.line, record.time))

    def _count(self, record: Record, text: str) -> None:
        if _PROBE.search(record.text):
            self._probe_lines += 1
        else:
            self._messages += 1
        self._rank_lines[record.rank] = self._rank_lines.get(record.rank, 0) + (record.ended_by == "\n")
        if text not in self._templates and len(self._templates) >= self.TEMPLATES:
            text = "..."
        if text != "..." and not _PROBE.search(record.text):
            self._kinds.setdefault(record.rank, {}).setdefault(text, (record.line, record.text[:200]))
        counts = self._templates.setdefault(text, {})
        counts[record.rank] = counts.get(record.rank, 0) + 1


def template(text: str) -> str:
    """A message with its figures, paths and quoted words blanked: equal for lines of one kind."""
    return _BLANK.sub("#", text[:300])


def number(word: str) -> int | None:
    """A count or a port as a log has it; None of what is none, rubbish of a thousand digits for example."""
    return int(word) if word.isdecimal() and len(word) <= _DIGITS else None


def summarize(data: bytes, *, tp: int | None = None, sglang: str = "") -> LogSummary:
    """A whole log at once."""
    reader = LogReader(tp=tp, sglang=sglang)
    reader.feed(data)
    return reader.summary()


def _bar(record: Record) -> Bar | None:
    if "%" not in record.text or record.time is not None:
        return None
    match = _BAR.match(record.text[:_WIDEST])
    if not match or int(match["percent"]) > 100:
        return None
    done, total = (int(match[k] or 0) for k in ("done", "total"))
    caption = template(match["caption"].strip()) or "progress"
    return Bar(caption, int(match["percent"]), done, total, record.line, record.rank)


def _arguments(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    inner = re.sub(r"^server_args=(ServerArgs)?[({]", "", text)
    for match in _ARGUMENT.finditer(inner):
        if match["key"] in _WANTED:
            found.setdefault(match["key"], match["text"] if match["text"] is not None else match["word"])
    return found
