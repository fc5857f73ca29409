"""Which SGLang the capture patch can be put into: what deploy refuses with, doctor says before."""

from __future__ import annotations

from hsops.core.errors import UnsupportedError
from hsops.core.versions import numbers, within
from hsops.payload.hsops_hs_dump.strategy import FIRST, HOOK_FLAG, LAST

HOOKS_SINCE = "0.5.6"


def refusal(version: str, method: str) -> UnsupportedError | None:
    """Why this SGLang cannot be captured, as far as its version tells; None: it can, or nobody knows its version.

    Args:
        version: SGLang's.
        method: of the patch: ``source`` or ``hook``.
    """
    if not numbers(version):
        return None
    if method == "hook":
        return None if within(version, since=HOOKS_SINCE) else no_hooks(version)
    return None if within(version, since=FIRST) else not_patchable(version)


def not_patchable(version: str, missing: str = "") -> UnsupportedError:
    """``missing``: what its source lacks, and where."""
    return UnsupportedError(
        f"SGLang {version or 'of unknown version'} cannot be patched{missing and f' (not found: {missing})'}",
        why=f"capture is known to be right on {FIRST} to {LAST}; nothing was changed",
        fix=f"install one of those, e.g. pip install sglang=={LAST}",
    )


def no_hooks(version: str) -> UnsupportedError:
    """Its command line has no ``--forward-hooks``."""
    return UnsupportedError(
        f"SGLang {version or 'of unknown version'} has no --{HOOK_FLAG}",
        why=f"method: hook needs it; it came with {HOOKS_SINCE}. Nothing was changed",
        fix="set patches.<name>.method: source in inventory.yaml, or install a newer SGLang",
    )
