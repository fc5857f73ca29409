"""Hidden states of a served model, one file a prompt, written while SGLang serves as usual.

Installed beside ``sglang`` by hsops and switched on by ``SGLANG_HS_DUMP_DIR``. Depends on torch and the standard
library (and on xxhash when it is there). How it works and what it promises: docs/reference/hs-dump.md of hsops.
"""

from typing import Any


def install(module: "dict[str, Any]") -> None:
    """Follow the models of the registry whose module's globals these are. Called by the stanza; never raises."""
    from .wiring import install as wire

    wire(module)


def hook(_config: "dict[str, Any]") -> None:
    """Wrap the model of whoever called this: a factory for ``--forward-hooks`` that gives no hook; never raises."""
    import inspect

    from .wiring import hooked

    hooked(inspect.currentframe())
