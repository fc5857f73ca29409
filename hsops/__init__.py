"""hsops: hidden-state capture in SGLang, operated over SSH.

For programs: ``from hsops import load_inventory, runs, diagnose_log, diagnose_bundle, samples, read_dump, check_dumps``
(``hsops.api``, loaded when one of them is asked for). docs/reference/python.md has an example.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hsops.api import (
        Dump,
        HsopsError,
        check_dumps,
        diagnose_bundle,
        diagnose_log,
        load_inventory,
        read_dump,
        runs,
        samples,
    )

__version__ = "0.1.0"
__all__ = [
    "Dump",
    "HsopsError",
    "__version__",
    "check_dumps",
    "diagnose_bundle",
    "diagnose_log",
    "load_inventory",
    "read_dump",
    "runs",
    "samples",
]


def __getattr__(name: str) -> Any:
    """The API, on first use: ``hsops --help`` must not load it."""
    if name not in __all__:
        raise AttributeError(f"module 'hsops' has no attribute {name!r}")
    from hsops import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
