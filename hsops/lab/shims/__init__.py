"""What lets a real SGLang run on a CPU without its CUDA wheels.

``lab up`` copies this package into the lab's site-packages and starts it from a ``.pth`` file, so that it is there in
every interpreter of the lab: the server, its spawned ranks, the agent under ``-I``. (A ``sitecustomize`` would not do:
Debian's own lies earlier on the path.) SGLang's files stay as they were published: stand-ins take the place of packages
that cannot be installed here, and a few patches are applied to modules after their import.

An interpreter that imports no SGLang pays for one small finder, nothing else; hence no imports at the top of it.
"""

from __future__ import annotations

from . import hooks

_done: set[str] = set()  # site reads the .pth files of a virtual environment twice


def start(sglang: str) -> None:
    """Prepare this interpreter for SGLang ``sglang`` (its version)."""
    if "start" in _done:
        return
    _done.add("start")

    import os

    from . import cpu, deaths, imitate
    from .standins import Finder, wanted

    numbers = version(sglang)
    hooks.finders().insert(0, Finder(wanted(numbers)))
    asked = (imitate.patches(os.environ.get(imitate.VARIABLE, "")), deaths.patches(os.environ.get(deaths.VARIABLE, "")))
    for patches in (cpu.patches(numbers), *asked):
        for module, patch in patches:
            hooks.after_import(module, patch)


def fault(name: str) -> None:
    """Break it in the way ``name`` of ``faults.FAULTS`` says, or at a place of ``faults.PLACES``: ``NAME@PLACE``."""
    if name in _done:
        return
    _done.add(name)

    from .faults import hooks_of

    for module, patch in hooks_of(name):
        hooks.after_import(module, patch)


def version(text: str) -> tuple[int, ...]:
    """``0.5.10.post2`` -> (0, 5, 10)."""
    numbers = []
    for part in text.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        numbers.append(int(digits or 0))
    return tuple(numbers)
