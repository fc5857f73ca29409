"""``up``, ``down`` and ``status`` of a lab."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from hsops.core.errors import LabError
from hsops.core.events import Emit, Note, ignore
from hsops.lab import cache, environment, packages, practice, processes, record, sshd, wheels
from hsops.lab import model as models
from hsops.lab.layout import Layout, layout
from hsops.lab.record import Record

GRACE_S, END_PATIENCE_S = 3.0, 20.0


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab that is up.

    Args:
        layout: its paths.
        sglang: version of SGLang.
        fault: the fault that is armed; None for none.
        tp: tensor-parallel size of the server ``tiny``.
        port: of its OpenSSH server, on 127.0.0.1.
        model: the folder of the model that ``tiny`` serves.
        done: what ``up`` had to do; empty when it was up already.
        took_s: how long that took.
    """

    layout: Layout
    sglang: str
    fault: str | None
    tp: int
    port: int
    model: Path
    done: tuple[str, ...]
    took_s: float

    @property
    def inventory(self) -> Path:
        """Its inventory.yaml: ``hsops -i <this> ...`` works on it."""
        return self.layout.inventory


def up(
    home: Path | None = None,
    *,
    sglang: str | None = None,
    fault: str | None = None,
    tp: int | None = None,
    model: str | None = None,
    emit: Emit = ignore,
) -> Lab:
    """Bring a lab up, or bring it to what is wanted. What is right already is left alone.

    Args:
        home: its folder, made when missing; ``~/.hsops-lab`` by default.
        sglang: version; by default the lab's present one, else 0.5.9. Another one replaces the lab's SGLang.
        fault: a name of ``hsops.lab.shims.faults.FAULTS``; None restores a lab without a fault.
        tp: tensor-parallel size of the server in its inventory; by default the present one, else 2.
        model: a name of ``hsops.lab.model.MODELS``; by default the present one, else ``deepseek``.
        emit: told of each step.

    Raises:
        UsageError: no such fault or model, not a version, or ranks that the model has no heads for.
        LabError: a step failed, a server runs whose SGLang would have to be replaced, or this is no Linux.
    """
    if sys.platform != "linux":
        raise LabError("the lab runs on Linux only: it is a host", fix="a Linux machine or virtual machine")
    started = time.monotonic()
    environment.check_fault(fault)
    place = layout(home)
    _claim(place)
    with cache.locked(place.lock, lambda: emit(Note(f"another hsops lab works in {place.home}"))):
        have = record.read(place.record)
        wish = _settled(have, sglang=sglang, tp=tp, model=model)
        ready = packages.ensure(emit)
        text = _inventory(place, wish)
        want = _wanted(wish, fault=fault, text=text)
        done = _build(place, have, want, packages=ready, text=text, emit=emit)
        if sshd.status(place.sshd) is None:
            done.append("sshd")
        running = sshd.start(place.sshd)
    folder = place.models / models.MODELS[want.model].folder
    return Lab(place, want.sglang, fault, want.tp, running.port, folder, tuple(done), time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a lab is to be, nothing left open."""

    sglang: str
    tp: int
    model: str


def _settled(have: Record | None, *, sglang: str | None, tp: int | None, model: str | None) -> _Wish:
    """What was asked for, else what is there, else the defaults."""
    ranks = tp or (have.tp if have else record.TP)
    named = models.check(model or (have.model if have else models.DEFAULT))
    version = wheels.check(sglang or (have.sglang if have else wheels.DEFAULT))
    return _Wish(version, ranks, models.fitting(named, ranks))


def _inventory(place: Layout, wish: _Wish) -> str:
    return practice.inventory(str(place.home), tp=wish.tp, cpus=sorted(os.sched_getaffinity(0)), model=wish.model)


def _wanted(wish: _Wish, *, fault: str | None, text: str) -> Record:
    return Record(
        sglang=wish.sglang,
        packages=packages.key(),
        python=f"{platform.python_version()} {sys.base_prefix}",
        shims=environment.shims_key(),
        fault=fault,
        tp=wish.tp,
        inventory=_sha(text),
        model=wish.model,
    )


def down(home: Path | None = None, *, purge: bool = False) -> list[processes.Found]:
    """End all processes of a lab: its sshd with all sessions, servers, supervisors, agents. Idempotent.

    Args:
        home: as for ``up``.
        purge: remove the home as well; the package set in the cache stays.

    Returns:
        The processes that ran from the lab's environment and were ended.

    Raises:
        LabError: a process does not end, or the folder to purge is not a lab.
    """
    place = layout(home)
    if not place.home.exists():
        return []
    _refuse_foreign(place)
    with cache.locked(place.lock):
        ended = _end_processes(place)  # first: a server that a session started in the foreground would hold up sshd
        sshd.stop(place.sshd)
        ended += _end_processes(place)  # what a client has started meanwhile
        if left := processes.running_from(place.python.parent):
            names = ", ".join(f"{p.pid} ({p.title})" for p in left)
            raise LabError(f"these processes of the lab do not end: {names}")
        if purge:
            shutil.rmtree(place.home)
    return ended


def _end_processes(place: Layout) -> list[processes.Found]:
    return processes.end_all(place.python.parent, grace=GRACE_S, patience=END_PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Status:
    """A lab, up or not.

    Args:
        layout: its paths.
        made: what it was built from; None when there is no lab.
        port: of its OpenSSH server; None when that does not run.
        processes: that run from its environment.
        packages: the package set's folder.
        bytes: sizes of the home, and of its dumps.
    """

    layout: Layout
    made: Record | None
    port: int | None
    processes: tuple[processes.Found, ...]
    packages: Path
    bytes: dict[str, int]


def status(home: Path | None = None) -> Status:
    """What there is at ``home``. Changes nothing."""
    place = layout(home)
    running = sshd.status(place.sshd)
    return Status(
        layout=place,
        made=record.read(place.record),
        port=running.port if running else None,
        processes=tuple(processes.running_from(place.python.parent)),
        packages=packages.folder(),
        bytes={"home": _size(place.home), "dumps": _size(place.dumps), "packages": _size(packages.folder())},
    )


def _build(place: Layout, have: Record | None, want: Record, *, packages: Path, text: str, emit: Emit) -> list[str]:
    """Do what the plan says; names what was done. The record is written last, so an interrupted build is redone."""
    steps, done = record.plan(have, want), []
    if steps.environment:
        wheel = wheels.ensure(want.sglang, packages / "bin" / "python", emit)
        _refuse_busy(place)
        emit(Note(f"unpacking SGLang {want.sglang}"))
        place.record.unlink(missing_ok=True)
        environment.build(place, packages, wheel)
        done.append(f"SGLang {want.sglang}")
    if steps.furnish:
        environment.furnish(place, packages, want.sglang, want.fault)
        done.append(_furnished(have, want))
    if models.ensure(place.models / models.MODELS[want.model].folder, want.model, place.python, emit):
        done.append("model")
    if steps.inventory or not place.inventory.exists():
        want = _write_inventory(place, have, want, text, emit)
        done.append("inventory")
    for folder in (place.state, place.dumps):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not place.ssh_config.is_symlink():
        place.ssh_config.symlink_to(Path("sshd") / "ssh_config")
    if want != have:
        record.write(place.record, want)
    return done


def _furnished(have: Record | None, want: Record) -> str:
    if want.fault:
        return f"fault {want.fault}"
    return f"without fault {have.fault}" if have and have.fault else "shims"


def _write_inventory(place: Layout, have: Record | None, want: Record, text: str, emit: Emit) -> Record:
    """Write the inventory, unless a user made it theirs."""
    there = place.inventory.read_text() if place.inventory.exists() else None
    if there is not None and have is not None and _sha(there) != have.inventory:
        emit(Note(f"{place.inventory} was edited and stays as it is", level="warn"))
        return replace(want, inventory=have.inventory)
    place.inventory.write_text(text)
    return want


def _claim(place: Layout) -> None:
    """Make the home, or make sure that it is a lab's."""
    _refuse_foreign(place)
    place.home.mkdir(mode=0o700, parents=True, exist_ok=True)


def _refuse_foreign(place: Layout) -> None:
    if place.home.exists() and not place.lock.exists() and any(place.home.iterdir()):
        raise LabError(f"{place.home} is not empty and not a lab", fix="name another folder: hsops lab up --home DIR")


def _refuse_busy(place: Layout) -> None:
    if alive := processes.running_from(place.python.parent):
        raise LabError(
            f"{len(alive)} processes still run from {place.venv}",
            why="the SGLang under a running server would be replaced",
            fix=f"hsops -i {place.inventory} stop, or hsops lab down --home {place.home}",
        )


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _size(folder: Path) -> int:
    """Bytes of all files below ``folder``; 0 when it is not there."""
    total = 0
    for base, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(base, name)).st_size for name in names)  # noqa: PTH118
    return total
