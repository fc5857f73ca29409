"""A plan as lines for a POSIX shell on its host: what the agent would start, with the secrets masked. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from hsops.core.command import quote
from hsops.core.secret import MASK, is_secret_variable, masked
from hsops.launch.plan import Plan

# what is known only once there is a run: a shell variable of that name counts, else what stands behind it
_LATER = {
    "{run}": '"${run:-by-hand}"',
    "{run_dir}": '"${run_dir:-.}"',
    "{port}": '"${port:-30000}"',
    "{dist}": '"${dist:?host:port of the first node}"',
    "{:PYTHONPATH}": '"${PYTHONPATH:+:$PYTHONPATH}"',
}
_WORDS = re.compile(r"(\{run\}|\{run_dir\}|\{port\}|\{dist\}|\{:PYTHONPATH\}|\{python\}|\{model\}|\{dump_dir\})")


def pasted(plan: Plan) -> str:
    """One command over several lines: its environment, the interpreter, then a flag a line."""
    lines = ["env", *(f"  {word}" for word in _environment(plan)), *(f"  {flag}" for flag in _flags(plan))]
    return " \\\n".join(lines)


def submitted(job: Mapping[str, Any]) -> str:
    """The command that hands a run to Slurm; its script is one step, which starts what ``pasted`` shows."""
    words = [f"{job['bin']}/sbatch" if job["bin"] else "sbatch", *job["options"]]
    pieces = [[piece and shlex.quote(piece) for piece in word.split("{run_dir}")] for word in words]
    return " ".join("$run_dir".join(parts) for parts in pieces)


def _environment(plan: Plan) -> Iterator[str]:
    """Also what the agent adds to every run."""
    folder, _, _ = plan.python.rpartition("/")
    yield f'PATH={quote(folder)}:"$PATH"'
    yield "PYTHONUNBUFFERED=1"
    for name, value in sorted(plan.env.items()):
        yield f"{name}={shlex.quote(MASK) if is_secret_variable(name) else _word(value, plan)}"


def _flags(plan: Plan) -> Iterator[str]:
    line: list[str] = []
    for word in masked([MASK if word in plan.secrets else word for word in plan.argv]):
        if word.startswith("--") and line:
            yield " ".join(line)
            line = []
        line.append(_word(word, plan))
    yield " ".join(line)


def _word(text: str, plan: Plan) -> str:
    """Quoted, with what is known filled in; only paths that the agent expands may begin with ``~``."""
    known = {"{python}": quote(plan.python), "{model}": quote(plan.model), "{dump_dir}": quote(plan.dump_dir)}
    known |= _LATER | ({"{port}": str(plan.port)} if plan.port else {}) | ({"{dist}": plan.dist} if plan.dist else {})
    pieces = [known.get(piece) or shlex.quote(piece) for piece in _WORDS.split(text) if piece]
    return "".join(pieces) or "''"
