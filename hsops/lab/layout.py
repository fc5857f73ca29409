"""Where a lab keeps what: one folder, the lab's home."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from hsops.core.errors import UsageError

_PLAIN = re.compile(r"^/[\w/. +,@=-]*[\w/.+,@=-]$")
DEFAULT_HOME = Path("~/.hsops-lab")


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of the lab at ``home`` (absolute)."""

    home: Path

    @property
    def venv(self) -> Path:
        """The server's environment, as it would lie on a real host."""
        return self.home / "venv"

    @property
    def python(self) -> Path:
        """The interpreter that runs SGLang and the agent."""
        return self.venv / "bin" / "python"

    @property
    def site(self) -> Path:
        """Where the lab's own copy of SGLang lies: the tree that patches change."""
        return self.venv / "lib" / python_tag() / "site-packages"

    @property
    def fault_file(self) -> Path:
        """The line that arms a fault; absent when there is none."""
        return self.site / "hsops_lab_fault.pth"

    @property
    def models(self) -> Path:
        """Where the tiny models lie (``hsops.lab.model``)."""
        return self.home / "models"

    @property
    def state(self) -> Path:
        """hsops' state_dir."""
        return self.home / "state"

    @property
    def dumps(self) -> Path:
        """Where the ranks write hidden states."""
        return self.home / "dumps"

    @property
    def sshd(self) -> Path:
        """The OpenSSH server's folder (``hsops.lab.sshd``)."""
        return self.home / "sshd"

    @property
    def ssh_config(self) -> Path:
        """For ``ssh -F``: reaches the lab as ``lab``."""
        return self.home / "ssh_config"

    @property
    def inventory(self) -> Path:
        """A ready inventory.yaml."""
        return self.home / "inventory.yaml"

    @property
    def record(self) -> Path:
        """What was built here, as JSON (``hsops.lab.record``)."""
        return self.home / "lab.json"

    @property
    def lock(self) -> Path:
        """Held by the one ``up`` or ``down`` that works here."""
        return self.home / "lab.lock"


def layout(home: Path | None) -> Layout:
    """The layout of a home; without one, of the default.

    Raises:
        UsageError: the path cannot be written into the files that name it (YAML, ssh_config, a ``.pth``).
    """
    path = (home or DEFAULT_HOME).expanduser().absolute()
    if not _PLAIN.match(str(path)):
        raise UsageError(
            f"a lab's folder must have a plain name, not {str(path)!r}", fix="letters, digits, space and . _ + , @ = -"
        )
    return Layout(path)


def python_tag() -> str:
    """``python3.11``: labs run on the Python that runs hsops."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"
