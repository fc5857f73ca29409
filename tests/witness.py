"""A witness of changes: the host's own Python tells of every change that it is inside, by a file that one can make.

It is a ``sitecustomize`` of the practice host: the moment that a journal is in place ``inside`` is made with O_EXCL,
and it goes with the journal. Whoever finds it there while making it writes a line to ``violations``.
"""

from __future__ import annotations

from tests.practice_host import PracticeHost

CODE = """\
import os, signal, time
FOLDER, REPLACE, UNLINK = {folder!r}, os.replace, os.unlink

def replace(source, target, **more):
    REPLACE(source, target, **more)
    if str(target).endswith("/journal.json"):
        try:
            os.close(os.open(FOLDER + "/inside", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            with open(FOLDER + "/violations", "a") as file:
                print(os.getpid(), target, file=file)
        with open(FOLDER + "/entered", "a") as file:
            print(os.getpid(), file=file)
        if os.path.exists(FOLDER + "/pause"):
            UNLINK(FOLDER + "/pause")
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep({seconds})

def unlink(path, **more):
    if str(path).endswith("/journal.json"):
        try:
            UNLINK(FOLDER + "/inside")
        except FileNotFoundError:
            pass
    UNLINK(path, **more)

os.replace, os.unlink = replace, unlink
"""


def place_witness(host: PracticeHost, *, seconds: float = 0.0) -> None:
    """From now on changes are witnessed, and each stays ``seconds`` longer inside."""
    code = CODE.format(folder=str(host.folder), seconds=seconds)
    (host.site / "sitecustomize.py").write_text(code)


def pause_inside(host: PracticeHost) -> None:
    """The next change stops its process (SIGSTOP) when its journal is in place."""
    (host.folder / "pause").touch()


def entered(host: PracticeHost) -> int:
    """How many changes were witnessed."""
    path = host.folder / "entered"
    return len(path.read_text().splitlines()) if path.exists() else 0


def violations(host: PracticeHost) -> str:
    """Who was inside together with somebody."""
    path = host.folder / "violations"
    return path.read_text() if path.exists() else ""
