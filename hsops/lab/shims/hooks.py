"""Functions that run right after the import of a module, in whichever process imports it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import MetaPathFinder
    from types import ModuleType
    from typing import Any

    Patch = Callable[[ModuleType], None]


def finders() -> list[Any]:
    """The import system's finders, in the order in which they are asked."""
    return sys.meta_path


def after_import(name: str, patch: Patch) -> None:
    """Call ``patch(module)`` once the module ``name`` has been executed. Several patches run in the order given."""
    _waiting.setdefault(name, []).append(patch)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    """Lets the other finders find a module, and wraps the loader of those that somebody waits for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patches = _waiting.pop(name, None)  # popped: while the others look, this finder must not find it again
        if patches is None:
            return None
        spec = _ask_the_others(name, path, target)
        loader: Any = spec.loader if spec else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for patch in patches:
                    patch(module)

            loader.exec_module = exec_module
        return spec


def _ask_the_others(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    finder: MetaPathFinder
    for finder in sys.meta_path:  # type: ignore[assignment]
        spec = None if finder is _finder else finder.find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


_waiting: dict[str, list[Patch]] = {}
_finder: Any = _Finder()
