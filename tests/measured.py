"""A page of docs/reference that a long run writes, and the data beside it that the page is made of."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from hsops.lab.cache import locked

DOCS = Path(__file__).parents[1] / "docs/reference"


class Measured:
    """Both files.

    Args:
        name: theirs, without an ending.
        page: makes the one out of the other.
    """

    def __init__(self, name: str, page: Callable[[Mapping[str, Any]], str]) -> None:
        self._data, self._page, self._made = DOCS / f"{name}.json", DOCS / f"{name}.md", page
        self._lock = Path(tempfile.gettempdir()) / f"hsops-{name}-{os.getuid()}.lock"

    def read(self) -> dict[str, Any]:
        """What was seen so far; empty before the first run."""
        found: dict[str, Any] = json.loads(self._data.read_text()) if self._data.exists() else {}
        return found

    def write(self, data: Mapping[str, Any]) -> None:
        """Keep it, and renew the page."""
        self._data.write_text(json.dumps(data, indent=1) + "\n")
        self._page.write_text(self._made(data))

    def alone(self) -> AbstractContextManager[None]:
        """Two runs may share a machine."""
        return locked(self._lock)

    @contextmanager
    def change(self) -> Iterator[dict[str, Any]]:
        """The data, to be changed, and then written."""
        with self.alone():
            data = self.read()
            yield data
            self.write(data)

    @property
    def is_fresh(self) -> bool:
        """The page is what its data says."""
        return self._page.read_text() == self._made(self.read())
