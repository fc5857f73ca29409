"""A plan as a file: made by ``deploy --check --out FILE``, carried out as it stands by ``deploy --plan FILE``."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hsops import __version__
from hsops.core.errors import ConfigError, Fault
from hsops.core.files import make_durable
from hsops.deploy.planned import Plan

FORMAT = "hsops-plan/2"
AGAIN = "hsops deploy --check --out FILE makes a new one"
_CONFIG = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class Entry(BaseModel):
    """One patch on one host, by its name in the inventory."""

    model_config = _CONFIG

    host: str
    plan: Plan


class PlanFile(BaseModel):
    """What the file says.

    Args:
        hsops: the version that made it; ``made``: seconds since the epoch.
        revert, force: which command it is a plan of.
        entries: what would be done where, in this order.
    """

    model_config = _CONFIG

    hsops: str
    made: float
    revert: bool
    force: bool
    entries: tuple[Entry, ...]


def write(path: Path, plans: Sequence[tuple[str, Plan]], *, revert: bool, force: bool) -> None:
    """Write plans, each with its host's name, whole or not at all; readable by the owner only: it holds file contents.

    Raises:
        OSError: it cannot be written.
    """
    entries = tuple(Entry(host=host, plan=plan) for host, plan in plans)
    made = PlanFile(hsops=__version__, made=round(time.time(), 3), revert=revert, force=force, entries=entries)
    body = made.model_dump(mode="json")
    text = json.dumps({"format": FORMAT, "sha256": _digest(body), "plan": body}, indent=1)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            make_durable(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> PlanFile:
    """The plans in a file.

    Raises:
        ConfigError: there is no such file, it is no plan, of another format of hsops, or was edited since.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _fault(path, "", error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise _fault(path, "", "not text, so no plan of hsops") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            [Fault(str(path), error.lineno, error.colno, "", f"not JSON: {error.msg}")], fix=AGAIN
        ) from None
    if not isinstance(raw, dict) or not str(raw.get("format", "")).startswith("hsops-plan/"):
        raise _fault(path, "format", "not a plan of hsops deploy")
    if raw["format"] != FORMAT:
        raise _fault(path, "format", f"made by another hsops: {raw['format']}; this one, {__version__}, reads {FORMAT}")
    if raw.get("sha256") != _digest(raw.get("plan")):
        raise _fault(
            path, "sha256", "edited or damaged since it was made; a plan is carried out as it was shown, or not"
        )
    try:
        return PlanFile.model_validate_json(json.dumps(raw["plan"]))
    except ValidationError as error:
        faults = [Fault(str(path), 0, 0, ".".join(map(str, e["loc"])), e["msg"]) for e in error.errors()]
        raise ConfigError(faults, fix=AGAIN) from None


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _fault(path: Path, where: str, message: str) -> ConfigError:
    return ConfigError([Fault(str(path), 0, 0, where, message)], fix=AGAIN)
