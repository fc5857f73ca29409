"""SGLang's published wheels, kept in the cache."""

from __future__ import annotations

import re
from pathlib import Path

from hsops.core.errors import LabError, UsageError
from hsops.core.events import Emit
from hsops.core.versions import within
from hsops.lab import cache
from hsops.lab.layout import python_tag
from hsops.lab.pip import Pip
from hsops.payload.hsops_hs_dump.strategy import FIRST as OLDEST
from hsops.payload.hsops_hs_dump.strategy import LAST as NEWEST

DEFAULT = "0.5.9"
DOWNLOAD_DEADLINE_S = 900.0
_VERSION = re.compile(r"^\d+(\.\d+){1,3}((a|b|rc|\.post|\.dev)\d+)?$")


def check(version: str) -> str:
    """A version as a user typed it.

    Raises:
        UsageError: it is not a version, or one from before those that hsops works with.
    """
    if not _VERSION.match(version):
        raise UsageError(f"{version!r} is not a version of SGLang", fix=f"for example: --sglang {NEWEST}")
    if not within(version, since=OLDEST):
        raise UsageError(
            f"hsops works with no SGLang before {OLDEST}, as {version} is", fix=f"--sglang {OLDEST}, or later"
        )
    return version


def ensure(version: str, python: Path, emit: Emit) -> Path:
    """The wheel of SGLang ``version``, downloaded by the pip of ``python`` unless it is in the cache.

    Raises:
        LabError: there is no such version for this Python, or the package index cannot be reached.
    """
    target = cache.folder() / "wheels" / python_tag() / f"sglang-{version}"

    def download(folder: Path) -> None:
        Pip(python, emit, DOWNLOAD_DEADLINE_S).run(
            *("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"sglang=={version}"),
            task="sglang",
            total=1,
            what=f"SGLang {version} cannot be had for {python_tag()}",
        )

    found = sorted(cache.built(target, download, emit).glob("*.whl"))
    if len(found) != 1:
        raise LabError(f"{target} holds {len(found)} wheels, not one", fix=f"rm -r {target}")
    return found[0]
