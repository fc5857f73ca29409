"""``python -m benchmarks [NAME ...]``: run the named benchmarks, or all."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path


def main(names: list[str]) -> int:
    """Run each benchmark's ``main()``; an unknown name is an error that lists the known ones."""
    known = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if not m.name.startswith("_"))
    if unknown := set(names) - set(known):
        sys.stderr.write(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(known)}\n")
        return 2
    for name in names or known:
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
