"""``python -m benchmarks [NAME ...]``: run the named benchmarks, or all; ``NAME OPTION ...``: one, its own way."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path


def main(words: list[str]) -> int:
    """Run each benchmark's ``main()``; an unknown name is an error that lists the known ones."""
    names = words[:1] if words[1:2] and words[1].startswith("-") else words
    known = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if not m.name.startswith("_"))
    if unknown := set(names) - set(known):
        sys.stderr.write(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(known)}\n")
        return 2
    for name in names or known:
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        importlib.import_module(f"benchmarks.{name}").main(words[len(names) :])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
