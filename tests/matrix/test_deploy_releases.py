"""Every release's own tree: deploy, deploy again without a write, revert to the byte. ``make deploy-releases``."""

from __future__ import annotations

import os
import py_compile
import shlex
import shutil
import sys
import time
import zipfile
from pathlib import Path

import pytest

from hsops.lab import wheels
from tests.faults.box import REGISTRY, Box
from tests.faults.syscalls import Call, calls, strace
from tests.matrix.test_releases import RELEASES

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("sglang", RELEASES)
def test_deploy_on_the_release(sglang: str, tmp_path: Path) -> None:
    """The whole wheel as pip unpacks it; bytes, modes, owners, time stamps and byte code are compared."""
    box = Box(tmp_path)
    shutil.rmtree(box.site / "sglang")
    with zipfile.ZipFile(wheels.ensure(sglang, Path(sys.executable), lambda _: None)) as wheel:
        wheel.extractall(box.site)
    py_compile.compile(str(box.site / REGISTRY), doraise=True)
    before = box.tree()

    started = time.monotonic()
    first = box.deploy()
    took, deployed, stamps = time.monotonic() - started, box.tree(), box.stamps()
    log, plain = tmp_path / "trace", box.python
    box.wrap(f'exec {shlex.join(strace(log))} "$@"')
    second = box.deploy()
    writes = [str(call) for call in calls(log) if is_write(call, box)]
    untouched = box.stamps() == stamps
    box.python = plain
    box.revert()

    assert first.needed and deployed != before
    assert not second.needed and writes == [] and untouched
    assert any("registry.py" in call.text for call in calls(log)), "the trace is of something else"
    assert box.tree() == before
    changed = sum(before.get(path) != facts for path, facts in deployed.items())
    print(f"\n{sglang}: {len(before)} files and folders, {changed} changed in {took:.2f} s, 0 written again, all back")


def is_write(call: Call, box: Box) -> bool:
    """It changes a file of SGLang or of hsops' own, or opens one for that; the lock is opened, never written."""
    roots = (str(box.site), str(box.state))
    if (
        call.failed
        or not any(path.startswith(roots) for path in call.paths)
        or "lock" in os.path.basename(call.paths[-1])
    ):
        return False
    if call.name in ("open", "openat"):
        return any(flag in call.text for flag in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"))
    return call.name not in ("exit_group", "fsync")
