"""The command line itself: global options, output, wrong files. Every case is the real program."""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import wait_gone

INVENTORY = "hosts:\n  here: {{ ssh: local, python: {python}, state_dir: {state} }}\n"


def hsops(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run hsops with standard input closed."""
    command = [sys.executable, "-m", "hsops", *words]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False
    )


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with an inventory of this machine."""
    text = INVENTORY.format(python=sys.executable, state=tmp_path / "state")
    (tmp_path / "inventory.yaml").write_text(text)
    return tmp_path


def test_json_is_taken_before_and_after_the_command(here):
    """--json may stand on either side; standard output is one envelope."""
    before = hsops("--json", "doctor", cwd=here)
    after = hsops("doctor", "--json", cwd=here)

    for done in (before, after):
        assert done.returncode == 0, done.stderr
        envelope = json.loads(done.stdout)
        assert (envelope["schema"], envelope["command"], envelope["ok"]) == ("hsops/1", "doctor", True)


@pytest.mark.parametrize(
    "typed,said",
    [
        (["user@host:99999"], "USER@HOST 'user@host:99999' is no address for ssh: Bad port"),
        (["a b"], "USER@HOST 'a b' is no address for ssh: hostname contains invalid characters"),
        (["root@"], "USER@HOST 'root@' is not user@host[:port] or an alias"),
        (["ssh://root@box:99999"], "USER@HOST 'ssh://root@box:99999' is no address for ssh"),
        ([""], "USER@HOST '' names no host"),
        (["box", "--ssh-config", "/nowhere"], "--ssh-config '/nowhere': there is no file /nowhere"),
    ],
)
def test_init_blames_what_was_typed(tmp_path, typed, said):
    """Neither ~/.ssh/config nor an inventory that nobody has yet; and nothing is written."""
    done = hsops("init", *typed, cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr.startswith(said) and "\n  fix: hsops init " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_address_in_the_inventory_is_blamed_there(tmp_path):
    """And a fault of OpenSSH's own file in that file."""
    (tmp_path / "config").write_text("Host box\n  NoSuchWord 1\n")
    text = "hosts:\n  box: {{ ssh: {ssh}, python: /usr/bin/python3{more} }}\n"

    (tmp_path / "inventory.yaml").write_text(text.format(ssh="a b", more=""))
    address = hsops("doctor", cwd=tmp_path)
    (tmp_path / "inventory.yaml").write_text(text.format(ssh="box", more=f", ssh_config: {tmp_path}/config"))
    config = hsops("doctor", cwd=tmp_path)

    assert "hosts.box.ssh: 'a b' is no address for ssh" in address.stderr
    assert address.returncode == config.returncode == 4
    assert config.stderr.startswith(f"box: {tmp_path}/config: ") and "line 2" in config.stderr


def test_completion_is_for_hsops_and_for_a_shell_that_has_it(tmp_path):
    """Also when Python started it; in another shell the fix is a line to type."""
    line = f"{shlex.quote(sys.executable)} -m hsops --show-completion; exit $?"

    bash, sh = (
        subprocess.run([shell, "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        for shell in ("bash", "/bin/dash")
    )

    assert bash.returncode == 0 and "_HSOPS_COMPLETE=complete_bash" in bash.stdout
    assert bash.stdout.rstrip().endswith(" hsops")
    assert (sh.returncode, sh.stdout) == (2, "")
    assert "there is no completion for" in sh.stderr and "fix: bash -c 'hsops --show-completion; true'" in sh.stderr


def test_the_agent_is_uploaded_once_by_its_hash(here):
    """The second call finds the agent that the first one put there."""
    hsops("doctor", cwd=here)
    (agent,) = (here / "state/agent").glob("*.pyz")
    first = agent.stat().st_mtime_ns

    hsops("doctor", cwd=here)

    assert agent.stat().st_mtime_ns == first
    assert list((here / "state/agent").glob("*.pyz")) == [agent]


@pytest.mark.parametrize(
    "text,expected",
    [
        (None, "inventory.yaml: no inventory here"),
        ("hosts: [\n", "inventory.yaml:2:1: YAML syntax"),
        ("hosts:\n  a: {ssh: local, python: /p, pyhton: /p}\n", "inventory.yaml:2:31: hosts.a.pyhton: unknown key"),
        ("servers:\n  s: {host: nobody, model: /m}\n", "inventory.yaml:2:13: servers.s.host: no host 'nobody'"),
    ],
    ids=["no inventory", "syntax", "unknown key", "unknown host"],
)
def test_a_wrong_inventory_is_exit_4_with_its_place(tmp_path, text, expected):
    """Nothing is done and the fault is named, for people and as JSON."""
    if text is not None:
        (tmp_path / "inventory.yaml").write_text(text)

    done, as_json = hsops("doctor", cwd=tmp_path), hsops("doctor", "--json", cwd=tmp_path)

    assert done.returncode == as_json.returncode == 4
    assert expected in done.stderr
    assert "Traceback" not in done.stderr + as_json.stderr
    envelope = json.loads(as_json.stdout)
    assert envelope["ok"] is False
    assert envelope["errors"][0]["file"] == "inventory.yaml"


def test_an_unknown_host_on_the_command_line_is_a_usage_error(here):
    """--host with a name that the inventory lacks: exit 2 and a suggestion."""
    done = hsops("doctor", "--host", "heer", cwd=here)

    assert done.returncode == 2
    assert "no host 'heer' in the inventory; did you mean 'here'?" in done.stderr


def test_an_unknown_command_is_a_usage_error(here):
    """A misspelt command: exit 2, no traceback."""
    done = hsops("doctr", cwd=here)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words,command,said",
    [
        ("deploy --bogus --json", "deploy", "No such option: --bogus"),
        ("--json lab up --bogus", "lab up", "No such option: --bogus"),
        ("deploy --json --parallel x", "deploy", "Invalid value for '--parallel'"),
        ("--json doctr", "hsops", "No such command 'doctr'"),
        ("--json", "hsops", "Missing command."),
    ],
)
def test_a_wrong_command_line_is_an_envelope_with_json(here, words, command, said):
    """As every other error is; exit 2 as without."""
    done = hsops(*words.split(), cwd=here)

    envelope = json.loads(done.stdout)
    assert (done.returncode, envelope["ok"], envelope["command"]) == (2, False, command)
    assert envelope["errors"][0]["message"].startswith(said)
    assert envelope["errors"][0]["fix"].endswith("--help")


def test_json_changes_no_exit_code(here):
    """Of help, the version, and a command that ends with a code of its own."""
    for words in ("--json --version", "--json --help", "deploy --json --help"):
        assert hsops(*words.split(), cwd=here).returncode == 0
    assert hsops("--json", "status", "--host", "nobody", cwd=here).returncode == 2


def test_a_closed_pipe_is_no_error(here):
    """`hsops doctor | head -0` ends quietly."""
    command = f"{sys.executable} -m hsops doctor | head -c 0"

    done = subprocess.run(["bash", "-c", command], cwd=here, capture_output=True, text=True, timeout=60, check=False)

    assert done.stderr == ""


@pytest.mark.parametrize(
    "stop",
    [
        "raise KeyboardInterrupt",
        "__import__('signal').raise_signal(2)",
        "Odd()",
    ],
    ids=["in an import", "as a signal", "where an exception is printed and forgotten"],
)
def test_ctrl_c_while_it_loads_is_quiet(here, stop):
    """130 and no traceback, also in the first tenth of a second."""
    code = "import builtins, hsops.__main__ as m\n" + (
        "class Odd:\n"
        "    def __del__(self): __import__('signal').raise_signal(2)\n"
        "def stop(name, *a, real=builtins.__import__, **k):\n"
        f"    if name == 'typer': {stop}\n"
        "    return real(name, *a, **k)\n"
        "builtins.__import__ = stop\nm.main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


LOADING = """
import builtins, os, signal, subprocess, sys, hsops.__main__ as m

class Popen(subprocess.Popen):
    def __init__(self, argv, **more):
        super().__init__(argv, **more)
        if "-E" in argv:
            print(self.pid, flush=True)
            if {at!r} == "ssh":
                signal.raise_signal(signal.SIGINT)

def load(name, *a, real=builtins.__import__, **k):
    if name == "typer" and {at!r} == "typer":
        signal.raise_signal(signal.SIGINT)
    return real(name, *a, **k)

subprocess.Popen, builtins.__import__ = Popen, load
m.main()
"""


@pytest.mark.parametrize("at", ["ssh", "typer"])
def test_ctrl_c_while_it_loads_ends_the_login_too(tmp_path, at):
    """Also while OpenSSH's client is started, and with a server that says nothing: no process, no log of it stays."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"{{ssh: 'me@127.0.0.1:{silent.getsockname()[1]}', python: /p}}"
        (tmp_path / "inventory.yaml").write_text(f"hosts: {{a: {where}}}\nservers: {{s: {{host: a, model: /m}}}}\n")
        (tmp_path / "tmp").mkdir()
        done = subprocess.run(
            [sys.executable, "-c", LOADING.format(at=at), "deploy", "--check"],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert (done.returncode, done.stderr) == (130, "")
        assert list((tmp_path / "tmp").iterdir()) == []
        assert wait_gone(int(done.stdout), 10)  # by itself it would go after 15 s


def test_an_inventory_may_come_through_a_pipe(here):
    """Whoever keeps it encrypted gives it so: ``-i <(sops -d inventory.yaml)``."""
    text = (here / "inventory.yaml").read_text() + "servers: { s: { host: here, model: /m } }\n"
    (here / "inventory.yaml").write_text(text)
    command = f"{sys.executable} -m hsops deploy --status -i <(cat inventory.yaml)"

    done = subprocess.run(["bash", "-c", command], cwd=here, capture_output=True, text=True, timeout=60, check=False)

    assert done.stderr.startswith("no patch is named, and none of the servers there has one")


def test_without_the_lab_the_way_to_it_is_named(tmp_path):
    """The repository's inventory before `hsops lab up`: the missing file is named, and the command that makes it."""
    inventory = Path(__file__).parents[2] / "inventory.yaml"
    env = {**os.environ, "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "hsops", "-i", str(inventory), "launch", "--check"]

    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 4
    assert "hosts.lab.ssh_config: there is no file ~/.hsops-lab/ssh_config" in done.stderr
    assert "hsops lab up" in done.stderr


def test_stop_on_failure_without_a_watch_is_refused(here):
    """Nobody would see the failure; nothing is started, no host asked."""
    done = hsops("launch", "--stop-on-failure", cwd=here)

    assert done.returncode == 2
    assert "--stop-on-failure needs --wait-healthy" in done.stderr
