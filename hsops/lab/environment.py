"""The server's environment in a lab: an interpreter of its own, SGLang as published, the shims, a fault or none."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from hsops.core.errors import UsageError
from hsops.lab import packages as package_set
from hsops.lab.layout import Layout
from hsops.lab.shims.faults import FAULTS, PLACES, hooks_of

SHIMS = Path(__file__).parent / "shims"
PACKAGE = "hsops_lab_shims"


def build(layout: Layout, packages: Path, wheel: Path) -> None:
    """A fresh environment: the interpreter, SGLang's files, nothing of an older lab."""
    shutil.rmtree(layout.venv, ignore_errors=True)
    package_set.make_venv(layout.venv, with_pip=False)
    own_interpreter(layout.python)
    (layout.python.parent / "py-spy").symlink_to(packages / "bin" / "py-spy")  # beside python, as pip would put it
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(layout.site)


def own_interpreter(python: Path) -> None:
    """Replace the link to the base interpreter by a copy of it.

    /proc/PID/exe then tells the lab's processes from all others, even after they have overwritten their command line
    and environment with a title, as SGLang's do. Where a copy does not start (it finds its shared library relative to
    itself), the link stays, and the command line has to do.
    """
    original = Path(sys.executable).resolve()
    python.unlink()
    shutil.copy2(original, python)
    works = subprocess.run(
        [python, "-I", "-c", "import encodings, ctypes"], check=False, capture_output=True, timeout=60
    )
    if works.returncode != 0:
        python.unlink()
        python.symlink_to(original)


def furnish(layout: Layout, packages: Path, sglang: str, fault: str | None) -> None:
    """Bring shims, package set and fault to what is wanted. SGLang's own files are not touched."""
    shutil.rmtree(layout.site / PACKAGE, ignore_errors=True)
    shutil.copytree(SHIMS, layout.site / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    start = f"import {PACKAGE}; {PACKAGE}.start({sglang!r})"
    (layout.site / "hsops_lab.pth").write_text(f"{package_set.site(packages)}\n{start}\n")
    if fault:
        layout.fault_file.write_text(f"import {PACKAGE}; {PACKAGE}.fault({fault!r})\n")
    else:
        layout.fault_file.unlink(missing_ok=True)


def shims_key() -> str:
    """Names the shims' content, to notice that hsops brings newer ones."""
    digest = hashlib.sha256()
    for path in sorted(SHIMS.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def check_fault(name: str | None) -> str | None:
    """A fault as a user typed it.

    Raises:
        UsageError: there is no such fault.
    """
    if name is not None:
        try:
            hooks_of(name)
        except KeyError:
            placed = ", ".join(known for known, fault in FAULTS.items() if fault.deed)
            fix = f"one of: {', '.join(FAULTS)}; {placed} also at a place, as NAME@{', @'.join(PLACES)}"
            raise UsageError(f"there is no fault {name!r}", fix=fix) from None
    return name
