"""Names, paths and words of the files a user writes: what may be in them, checked where they are read."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from hsops.core.slurm import seconds_of
from hsops.core.texts import a_name, a_remote_path, plain

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OWN_OF_SBATCH = ("--array", "--chdir", "--error", "--job-name", "--output", "--test-only", "--wait", "--wrap")
_FLAG = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def _a_model(value: str) -> str:
    if not value.strip() or value.startswith("-"):
        raise ValueError(f"{value!r} is neither a path on the host nor a hub id")
    return plain(value)


def _a_variable(value: str) -> str:
    if not _VARIABLE.match(value):
        raise ValueError(f"{value!r} is not the name of an environment variable")
    return value


def _a_flag(value: str) -> str:
    if not _FLAG.match(value):
        raise ValueError(f"{value!r} is not a flag: letters, digits, '.', '_' and '-'")
    return value


def _a_word(value: str) -> str:
    if not value or value.startswith("-") or any(c.isspace() for c in value):
        raise ValueError(f"{value!r} is not one word")
    return plain(value)


def _a_slurm_time(value: str) -> str:
    seconds_of(value)
    return value


def _an_sbatch_option(value: str) -> str:
    """One that leaves it at one job, whose name, folder and output hsops knows. sbatch takes long ones shortened."""
    name = value.partition("=")[0]
    owned = any(one == name or (len(name) > 3 and one.startswith(name)) for one in _OWN_OF_SBATCH)
    if owned or re.match(r"-[aDeJoW]", value):
        raise ValueError(f"{name!r} is not for options: a run is one job, and hsops sets its name, folder and output")
    return plain(value)


Name = Annotated[str, AfterValidator(a_name)]
RemotePath = Annotated[str, AfterValidator(a_remote_path)]
Plain = Annotated[str, AfterValidator(plain)]
Model = Annotated[str, AfterValidator(_a_model)]
Variable = Annotated[str, AfterValidator(_a_variable)]
Flag = Annotated[str, AfterValidator(_a_flag)]
Word = Annotated[str, AfterValidator(_a_word)]
SbatchOption = Annotated[str, AfterValidator(_an_sbatch_option)]
SlurmTime = Annotated[str, AfterValidator(_a_slurm_time)]
