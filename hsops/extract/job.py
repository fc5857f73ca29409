"""What an extract is asked for, and what it tells at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsops.core.dumps import Sample
from hsops.core.errors import HsopsError
from hsops.core.prompts import Prompt
from hsops.extract.ledger import PATIENCE_S
from hsops.extract.place import Place
from hsops.extract.pool import Failure


@dataclass(frozen=True, slots=True)
class Drained:
    """A fetch beside an extract, that makes room on the host.

    Args:
        folder: where it fetches to.
        home: dumps that are there already, by id, whatever the hosts still know of them.
        check: called twice a second; what it raises ends the extract, and what is done stays done.
        now: dumps that are here by now.
    """

    folder: Path
    home: Mapping[str, Sample]
    check: Callable[[], None]
    now: Callable[[], Mapping[str, Sample]] = dict


@dataclass(frozen=True, slots=True)
class Job:
    """What is wanted.

    Args:
        places: the servers that share the prompts; all capture the same.
        file: name of the prompts file.
        prompts: of it, in order.
        concurrency: prompts under way at once, at each server.
        relaunch: how often a server that died or hangs may be started again.
        patience: seconds that a host's file system may stay full.
        journal: where attempts are written down; None: nowhere.
        tokenized: where the prompts go as they are sent; None: nowhere.
        drained: the fetch that goes on beside it.
    """

    places: tuple[Place, ...]
    file: Path
    prompts: tuple[Prompt, ...]
    concurrency: int
    relaunch: int = 0
    patience: float = PATIENCE_S
    journal: Path | None = None
    tokenized: Path | None = None
    drained: Drained | None = None


@dataclass(frozen=True, slots=True)
class ServerRow:
    """What one server did.

    Args:
        server, host: their names.
        folder: where its dumps are on the host.
        run: id of the run that wrote the new ones; empty when none did.
        already, samples, tokens, bytes: dumps of these prompts that it had before; that it made now.
        relaunched: how often it was started again.
        lost: why it was lost, each time.
        error: why it is lost now; empty: it is not.
        verdict: of the last diagnosis, as ``hsops diagnose --json`` has it.
    """

    server: str
    host: str
    folder: str
    run: str
    already: int
    samples: int
    tokens: int
    bytes: int
    relaunched: int
    lost: tuple[str, ...]
    error: str
    verdict: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Extracted:
    """What an extract did.

    Args:
        prompts: how many were asked for.
        already: how many had their dump before.
        samples, tokens, bytes: dumps that are there now, of these prompts.
        servers: a row each.
        failures: prompts that were given up.
        seconds: how long it took.
        driving_s: from the first prompt that was sent to the last that was settled.
        interrupted: Ctrl-C.
        stopped: why it ended before every prompt had its dump or its failure.
    """

    prompts: int
    already: int
    samples: int
    tokens: int
    bytes: int
    servers: tuple[ServerRow, ...]
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0
    driving_s: float = 0.0
    interrupted: bool = False
    stopped: HsopsError | None = None
