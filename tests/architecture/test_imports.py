"""The tree keeps its promises about what loads what."""

import subprocess
import sys

HEAVY = ("fabric", "paramiko", "httpx", "pydantic", "numpy", "yaml", "safetensors", "xxhash")


def test_help_loads_no_heavy_library():
    """``hsops --help`` answers without loading the network, model or array libraries."""
    command = [sys.executable, "-X", "importtime", "-m", "hsops", "--help"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert loaded.isdisjoint(HEAVY), loaded & set(HEAVY)
    assert "typer" in loaded  # the listing was really read


def test_agent_runs_isolated_and_without_hsops():
    """The zipapp answers under ``-I`` on a bare interpreter, from any folder."""
    from hsops.remote.agent import build

    archive = build()

    done = subprocess.run(
        [sys.executable, "-I", "-c", _RUN_ZIP, str(len(archive))],
        input=archive + b'{"protocol":1,"params":{}}',
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert b'"python_ok":true' in done.stdout, done.stderr.decode()


_RUN_ZIP = """
import runpy, subprocess, sys, tempfile, os
size = int(sys.argv[1]); data = sys.stdin.buffer.read()
with tempfile.TemporaryDirectory() as d:
    path = os.path.join(d, "agent.pyz"); open(path, "wb").write(data[:size])
    r = subprocess.run([sys.executable, "-I", "-S", path, "hello"], input=data[size:], capture_output=True, cwd="/")
    sys.stdout.buffer.write(r.stdout); sys.stderr.buffer.write(r.stderr)
"""
