"""A patch of kind script is killed while its script is tried: the real files are as before, and the copy goes."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator

import psutil
import pytest

from tests.faults.crash import ALL, ground
from tests.faults.ground import REGISTRY, Ground
from tests.faults.syscalls import Call, calls, strace

GOOD = "import pathlib, os\npath = pathlib.Path(os.environ['HSOPS_ROOT'], {path!r})\npath.write_bytes(b'changed')\n"
# it has the path written in it, and where the kernel gives it no view of its own it changes the real file
BAD = "import pathlib\npathlib.Path({real!r}).write_bytes(b'changed')\n"
OURS = ("mkdir", "rename", "unlink", "unlinkat", "rmdir", "fchmod", "utimensat", "fsync", "link", "linkat")

pytestmark = pytest.mark.timeout(1800 if ALL else 300)


@pytest.fixture(scope="module")
def place() -> Iterator[Ground]:
    with ground() as made:
        yield made


def request(place: Ground, script: str, private: str) -> dict[str, object]:
    text = script.format(path=REGISTRY, real=str(place.site / REGISTRY))
    code = base64.b64encode(text.encode()).decode()
    own = {"script_b64": code, "name": "apply_it.py", "files": [REGISTRY], "args": [], "timeout": 30}
    return {"patch": "p", "place": "site", "private": private, **own}


@pytest.mark.parametrize(
    "script, private", [(GOOD, "auto"), (BAD, "auto"), (BAD, "no")], ids=["good", "bad", "no view"]
)
def test_killed_while_the_script_is_tried(script: str, private: str, place: Ground) -> None:
    """Whichever call it is, and also when the script had written to the real file already."""
    place.restore("clean")
    old, params, log = place.tree(), request(place, script, private), place.folder / "trace"
    done = place.call("patch-rehearse", params, *strace(log))
    assert place.tree() == old and done.exit == (1 if private == "no" else 0), done
    pid = log.read_text().split()[0]
    agent = log.with_name("agent")
    agent.write_text("".join(line for line in log.read_text().splitlines(True) if line.startswith(f"{pid} ")))
    roots = (str(place.site), str(place.state))
    points = [c for c in calls(agent) if c.name in OURS and any(p.startswith(roots) for p in c.paths)]
    assert len(points) > 8

    dirty = 0
    for point in points if ALL else random.Random(script).sample(points, 5):
        place.restore("clean")
        place.call("patch-rehearse", params, *strace(log, f"{point.name}:signal=KILL:when={point.nth}"))
        dirty += place.tree() != old
        assert_put_right(place, old, point)
    print(f"\n{len(points)} points, {dirty} with the real files changed when the kill came")


def assert_put_right(place: Ground, old: object, point: Call) -> None:
    """By one more command."""
    reply = place.inspect()
    assert reply.exit == 0, (str(point), reply)
    assert place.tree() == old, str(point)
    assert not (place.state / "scratch").exists() and place.memory() == set(), str(point)
    left = [
        p for p in psutil.process_iter(["cmdline"]) if str(place.state / "scratch") in " ".join(p.info["cmdline"] or ())
    ]
    assert not left, str(point)
