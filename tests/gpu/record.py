"""What runs on a GPU machine left behind becomes test data: ``tests/cases/gpu``.

python -m tests.gpu.record FOLDER                  the bundles of its evidence.tar.xz and what is said of each now
python -m tests.gpu.record FOLDER BUNDLE=NAME...   keeps bundles as NAME.bundle
python -m tests.gpu.record FOLDER smi              keeps what nvidia-smi said during the story

A bundle is what ``hsops diagnose --save`` wrote: without secrets, logs cut. A GPU's serial numbers are taken out of
what nvidia-smi said; a bundle that names one is refused.
"""

from __future__ import annotations

import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from hsops.diagnose import judge
from hsops.diagnose.bundle import unpack

CASES = Path(__file__).parents[1] / "cases/gpu"
SERIAL = re.compile(r"GPU-[0-9a-f]{8}-[0-9a-f-]{27}")
NOBODY = "GPU-00000000-0000-0000-0000-000000000000"


def main(folder: Path, wanted: list[str]) -> None:
    """List, or keep."""
    if wanted == ["smi"]:
        (CASES / "smi.txt").write_text(SERIAL.sub(NOBODY, (folder / "smi.txt").read_text()))
        return
    bundles = dict(read(folder / "evidence.tar.xz"))
    names = dict(word.rsplit("=", 1) for word in wanted)
    for name, data in sorted(bundles.items()):
        verdict = judge(unpack(data, name=name))
        if not wanted:
            print(
                f"{name}: {verdict.name} {'' if verdict.rank is None else f'TP{verdict.rank}'} ({verdict.confidence})"
            )
        elif name in names:
            if SERIAL.search(str(unpack(data, name=name))):
                sys.exit(f"{name} names a GPU by its serial number")
            (CASES / f"{names[name]}.bundle").write_bytes(data)
            print(f'    "{names[name]}": ("{verdict.name}", {verdict.rank}, {{...}}),')


def read(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The bundles by name."""
    with tarfile.open(archive) as whole:
        for member in whole:
            file = whole.extractfile(member) if member.name.startswith("evidence/") else None
            if file:
                yield Path(member.name).name, file.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
