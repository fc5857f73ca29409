"""Standard streams that are closed, full, ASCII only or read by nobody: the real program under a real shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

INVENTORY = "hosts:\n  here: {{ ssh: local, python: {python}, state_dir: {state} }}\n"
SERVER = "servers:\n  s: {{ host: here, model: /m }}\n"


def shell(line: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which ``$H`` is hsops."""
    command = ["bash", "-o", "pipefail", "-c", line]
    whole = {**os.environ, "H": f"{sys.executable} -m hsops", **env}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, env=whole, check=False)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with an inventory of this machine."""
    text = (INVENTORY + SERVER).format(python=sys.executable, state=tmp_path / "state")
    (tmp_path / "inventory.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&- <&-", "--json >&-"])
def test_a_closed_stream_is_like_the_null_device(here, closed):
    """Nothing is said there, and the command does what it should."""
    done = shell(f"$H status {closed}", here)

    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("words", ["status", "--json status"])
def test_a_full_output_is_an_error_with_its_reason(here, words):
    """Exit 1 and one message on the other stream; no traceback, not even when the interpreter ends."""
    done = shell(f"$H {words} >/dev/full", here)

    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "the output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.parametrize("words", ["--help", "deploy --help", "--version"])
def test_a_full_output_is_no_traceback_for_help(here, words):
    """Which Typer prints, not we."""
    done = shell(f"$H {words} >/dev/full", here)

    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        "the output cannot be written: No space left on device",
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("words", ["status --host nobody", "deploy --bogus"])
def test_an_error_that_cannot_be_said_as_json_is_said(here, words):
    """On the other stream, with its own exit code."""
    done = shell(f"$H --json {words} >/dev/full", here)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "nobody" in done.stderr or "--bogus" in done.stderr


def test_a_full_error_stream_leaves_the_exit_code(here):
    """There is nowhere to say it; the code is still that of the command."""
    assert shell("$H status --host nobody 2>/dev/full", here).returncode == 2


@pytest.mark.parametrize("words", ["status --host nobody 2>&1", "--json status --host nobody"])
def test_a_reader_who_left_does_not_make_a_failure_a_success(here, words):
    """The pipe's reader has gone before anything is said: the exit code is the command's, not 0."""
    done = shell(f"(read -t 20 < go; $H {words}) | {{ exec <&-; echo > go; }}", *_with_pipe(here))

    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def test_characters_that_the_terminal_lacks_are_replaced(here):
    """An ASCII terminal gets a question mark where a dot would be."""
    done = shell("$H lab status --home $PWD/lab; $H status", here, PYTHONIOENCODING="ascii")

    assert done.returncode == 0, done.stderr
    assert "bug" not in done.stderr


def _with_pipe(folder: Path) -> tuple[Path]:
    os.mkfifo(folder / "go")
    return (folder,)


@pytest.mark.parametrize(
    "words,code,expected",
    [
        ("lab up --home /proc/lab", 1, "/proc/lab: No such file or directory"),
        ("verify inventory.yaml", 2, "inventory.yaml is not a folder"),
        ("verify inventory.yaml/x", 2, "inventory.yaml/x is not a folder"),
        ("verify odd", 1, "manifest.jsonl"),
        ("fetch --to odd", 1, "manifest.jsonl"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(here, words, code, expected):
    """A refusal of this machine's system is an error with its path, and no bug in hsops."""
    (here / "odd/manifest.jsonl").mkdir(parents=True)
    (here / "dumps/s").mkdir(parents=True)
    (here / "dumps/s/manifest.jsonl").write_text("")
    inventory = here / "inventory.yaml"
    inventory.write_text(inventory.read_text().replace("ssh: local,", f"ssh: local, dumps: {here}/dumps,"))

    done = shell(f"$H {words}", here)

    assert (done.returncode, "bug in hsops" in done.stderr) == (code, False), done.stderr
    assert expected in done.stderr
