"""The package set: everything SGLang needs on a CPU except SGLang, built once and shared by all labs of a user."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from pathlib import Path

from hsops.core.errors import LabError
from hsops.core.events import Emit, Note
from hsops.lab import cache
from hsops.lab.layout import python_tag
from hsops.lab.pip import Pip

LISTS = Path(__file__).parent / "packages"
WITH_DEPENDENCIES = LISTS / "requirements.txt"
WITHOUT = LISTS / "no-deps.txt"  # they ask for a CUDA torch or another transformers, and work with these
OLDEST, NEWEST = (3, 11), (3, 13)  # the pinned wheels exist for these
BUILD_DEADLINE_S = 3600.0
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def key() -> str:
    """Names this package set: its pins, the Python and the machine it is for."""
    about = [python_tag(), platform.system(), platform.machine()]
    wanted = [pin for path in (WITH_DEPENDENCIES, WITHOUT) for pin in pins(path.read_text())]
    return hashlib.sha256("\n".join([*about, *wanted]).encode()).hexdigest()[:12]


def folder() -> Path:
    """Where the package set lies, there or not."""
    return cache.folder() / f"packages-{key()}"


def site(packages: Path) -> Path:
    """The set's site-packages."""
    return packages / "lib" / python_tag() / "site-packages"


def ensure(emit: Emit) -> Path:
    """The package set, built by pip if it is not there: minutes, and 1.5 GB on disk, the first time.

    Raises:
        LabError: this Python is not supported, or pip failed.
    """
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        raise LabError(
            f"the lab does not run on Python {platform.python_version()}",
            why="the lab runs on the Python that runs hsops, and its pinned packages exist for 3.11 to 3.13",
            fix="install hsops with another Python: python3.11 -m venv .venv && .venv/bin/pip install hsops",
        )
    return cache.built(folder(), lambda target: _build(target, emit), emit)


def _build(target: Path, emit: Emit) -> None:
    make_venv(target, with_pip=True)
    pip = Pip(target / "bin" / "python", emit, BUILD_DEADLINE_S)
    _install_cpu_torch(pip)
    lists = {WITH_DEPENDENCIES: (), WITHOUT: ("--no-deps",)}
    for path, options in lists.items():
        pip.run(
            "install",
            *options,
            "--requirement",
            str(path),
            task="packages",
            total=len(pins(path.read_text())),
            what="the lab's package set could not be built",
        )


def _install_cpu_torch(pip: Pip) -> None:
    """torch without CUDA, 200 MB instead of gigabytes, from PyTorch's own index if that answers.

    A mirror may have the CPU build as well; so what cannot be had here is left to the user's index.
    """
    torch = next(pin for pin in pins(WITH_DEPENDENCIES.read_text()) if pin.startswith("torch=="))
    once = ("--no-deps", "--index-url", CPU_INDEX, "--retries", "0", "--timeout", "15")
    try:
        pip.run("install", *once, torch, task="packages", total=1, what=f"no {torch} at {CPU_INDEX}")
    except LabError:
        pip.emit(Note(f"{CPU_INDEX} does not answer: torch comes from your index, perhaps with CUDA (gigabytes)"))


def pins(text: str) -> list[str]:
    """The requirements of a requirements file, without comments."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def make_venv(target: Path, *, with_pip: bool) -> None:
    """A virtual environment of this Python at ``target``.

    Raises:
        LabError: this Python cannot make one (Debian's without python3-venv).
    """
    options = [] if with_pip else ["--without-pip"]
    argv = [sys.executable, "-I", "-m", "venv", *options, str(target)]
    done = subprocess.run(
        argv, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300
    )
    if done.returncode != 0:
        said = " ".join(done.stdout.decode(errors="replace").split())
        raise LabError(
            f"{sys.executable} cannot make a virtual environment", why=said[-500:], fix="apt-get install python3-venv"
        )
