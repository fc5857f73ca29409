"""A state folder on a file system that knows no locks: refused before anything is changed, with the way out."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hsops.core.errors import AgentError
from tests.faults.box import Box


@pytest.mark.parametrize("calls,error", [("link,linkat", "error=EPERM"), ("flock", "error=ENOLCK")])
def test_where_nobody_can_be_kept_out_nothing_is_changed(calls: str, error: str, tmp_path: Path) -> None:
    """FAT has no hard links, an object store neither these nor flock; NFS without its lock service says ENOLCK."""
    box = Box(tmp_path)
    box.deploy()
    before, plain = box.tree(), box.python
    words = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", f"trace={calls}"]
    words += ["-e", f"inject={calls}:{error}"]
    box.wrap(f'exec {shlex.join(words)} "$@"')

    with pytest.raises(AgentError) as caught:
        box.revert()

    (entry,) = caught.value.as_json()
    assert "(INJECTED)" in (tmp_path / "trace").read_text()
    assert (entry["code"], entry["detail"]["path"].startswith(str(box.state))) == ("no-lock", True)
    assert "on which there can be no lock" in entry["message"] and "hosts.<name>.state_dir" in entry["fix"]
    box.python = plain
    assert box.tree() == before and box.status() == "applied"
