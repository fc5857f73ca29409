"""Patches of kind ``script``: the worst that a user's script can do, over the real sshd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hsops.core.errors import AgentError
from tests.hosts import Server, wait_gone
from tests.integration.practice_site import LINES, MODEL, Site, practice_site

OTHER = "sglang/srt/other.py"
SCRIPT = """\
import os, pathlib, subprocess, sys, time
path = pathlib.Path("{model}")
text = path.read_text()
assert "twenty" not in text, "patched already"
path.write_text(text.replace("line 20\\n", "line twenty\\n"))
print("patched", path)
"""
CHANGED = "".join(LINES).replace("line 20\n", "line twenty\n")


@pytest.fixture
def site(server: Server, tmp_path: Path) -> Iterator[Site]:
    site = practice_site(server.spec, tmp_path)
    site.write(OTHER, "other\n")
    script(site)
    with site.stack:
        yield site


def script(site: Site, more: str = "", *, options: str = "", start: str = "") -> None:
    """A script that patches the model, with ``more`` behind it; ``options``: of the patch."""
    (site.folder / "apply.py").write_text(start + SCRIPT.format(model=MODEL) + more)
    site.patches(f"  hand: {{ kind: script, run: ./apply.py, files: [{MODEL}, sglang/new.py]{options} }}\n")


def scratch(site: Site) -> Path:
    return site.folder.parent / "state/scratch"


def agent(site: Site, private: str = "auto", **more: Any) -> dict[str, Any]:
    """The verb itself, for what the command line does not choose: without a view of the script's own."""
    import base64

    site.states()
    spec = site.agents["practice"]
    text = base64.b64encode((site.folder / "apply.py").read_bytes()).decode()
    params = {"args": [], "env": {}, "timeout": 30, "files": [MODEL, "sglang/new.py"], **more}
    return spec.call(
        "patch-rehearse", patch="hand", place="site", name="apply.py", script_b64=text, private=private, **params
    )


def test_a_script_goes_in_and_comes_out_byte_for_byte(site: Site) -> None:
    """As the seeds' own: shown as a diff before anything is changed, run once, taken back; a changed one is stale."""
    (site.root / MODEL).chmod(0o640)
    os.utime(site.root / MODEL, ns=(10**18, 10**18))
    before = site.tree()
    script(site, "pathlib.Path('sglang/new.py').write_text('x = 1\\n')\n")

    looked = site.ok("--check", "--diff")["patches"][0]
    assert "+line twenty" in looked["diff"] and site.tree() == before
    site.ok()
    assert (site.root / MODEL).read_text() == CHANGED and (site.root / "sglang/new.py").read_text() == "x = 1\n"
    assert site.states() == {"hand": "applied"} and site.ok()["changes"] == 0

    script(site, "path.write_text(path.read_text().replace('twenty', 'zwanzig'))\n")
    assert site.states() == {"hand": "stale"}
    kinds = {a["path"]: a["kind"] for a in site.ok()["patches"][0]["actions"]}
    assert kinds == {MODEL: "update", "sglang/new.py": "remove"}
    assert (site.root / MODEL).read_text() == CHANGED.replace("twenty", "zwanzig")
    site.write(MODEL, "somebody's\n", 0o640)
    assert site.states() == {"hand": "foreign"} and "somebody edited" in site.refused("--revert")
    site.ok("--force")
    assert (site.root / MODEL).read_text() == CHANGED.replace("twenty", "zwanzig")
    site.write(MODEL, "somebody's\n", 0o640)
    site.ok("--revert", "--force")
    assert site.tree() == before and (site.root / MODEL).stat().st_mtime_ns == 10**18
    assert not scratch(site).exists()


def test_after_an_upgrade_the_script_is_run_on_the_new_code(site: Site) -> None:
    """Not on what the old SGLang had, which would come back by that."""
    site.ok()
    site.write(MODEL, "of 0.5.10\n" + "".join(LINES))
    site.write("sglang/version.py", '__version__ = "0.5.10"\n')

    site.ok()

    assert (site.root / MODEL).read_text() == "of 0.5.10\n" + CHANGED
    site.ok("--revert")
    assert (site.root / MODEL).read_text() == "of 0.5.10\n" + "".join(LINES)


@pytest.mark.parametrize(
    "how",
    [
        "path = pathlib.Path({root!r}) / '{model}'",
        "import sglang; path = pathlib.Path(sglang.__file__).parent / 'srt/models/model.py'",
        "path = pathlib.Path(sys.argv[1]) / '{model}'",
        "path = pathlib.Path(os.environ['HSOPS_ROOT'], '{model}'); assert os.environ['MINE'] == 'yes'",
    ],
    ids=["absolute path", "import", "argument", "environment"],
)
def test_every_way_to_name_the_file_leads_to_the_copy(how: str, site: Site) -> None:
    """The real one is as before after --check; what it leaves in __pycache__ does not matter."""
    before = site.tree()
    line = how.format(root=str(site.root), model=MODEL)
    script(site, options=", args: ['{root}'], env: { MINE: 'yes' }")
    text = (site.folder / "apply.py").read_text().replace(f'path = pathlib.Path("{MODEL}")', line)
    (site.folder / "apply.py").write_text(text + "import py_compile; py_compile.compile(str(path))\n")

    shown = site.ok("--check")

    assert site.tree() == before and "yes" not in str(shown["patches"][0]["options"])
    site.ok()
    assert (site.root / MODEL).read_text() == CHANGED


@pytest.mark.parametrize(
    "more,said",
    [
        (f"open('{OTHER}', 'a').write('x')\n", f"apply.py changed what it does not name: {OTHER}\n  | patched {MODEL}"),
        (f"os.unlink('{OTHER}')\n", f"changed what it does not name: {OTHER}"),
        ("open('sglang/srt/extra.py', 'w').write('x')\n", "changed what it does not name: sglang/srt/extra.py"),
        (f"os.chmod('{OTHER}', 0o777)\n", f"changed what it does not name: {OTHER}"),
        (f"os.rename('{OTHER}', 'sglang/new.py')\n", f"changed what it does not name: {OTHER}"),
        ("os.symlink('/etc/passwd', 'sglang/new.py')\n", "made sglang/new.py a link"),
        ("os.mkfifo('sglang/new.py')\n", "made sglang/new.py a link, a pipe or a device"),
        ("open('top.py', 'w')\n", "Read-only file system"),
        (
            "os.chmod('sglang/srt', 0)\nos.unlink('sglang/version.py')\n",
            "changed what it does not name: sglang/version.py",
        ),
        ("sys.exit(3)\n", "apply.py exited with 3"),
        ("raise ValueError('as it happens')\n", "ValueError: as it happens"),
        ("os.kill(os.getpid(), 9)\n", "apply.py was ended by signal 9"),
        ("sys.stdout.write('x' * (17 << 20)); sys.stdout.flush(); time.sleep(60)\n", "printed more than 16 MiB"),
    ],
    ids=lambda value: value.split("(")[0] if "(" in value else "",
)
def test_a_script_that_does_what_it_may_not_changes_nothing(more: str, said: str, site: Site) -> None:
    """Undeclared files, links, a bad end: told with the script's last lines."""
    script(site, more)

    told = site.refused()
    assert said in told and "patches.<name>" not in told
    assert site.states() == {"hand": "absent"} and not scratch(site).exists()


def test_a_script_that_takes_too_long_is_ended_with_all_its_children(site: Site) -> None:
    """At the deadline of the inventory."""
    pids = site.folder / "pids"
    script(
        site,
        f"child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)\n",
        options=", timeout: 4",
    )

    assert "apply.py ran longer than 4 s and was ended" in site.refused()
    assert not any(psutil.pid_exists(int(pid)) for pid in pids.read_text().split())


def test_a_child_that_outlives_its_script_is_ended_before_the_files_are_read(site: Site) -> None:
    """A double fork that would write an undeclared file some seconds later; the change itself is fine."""
    late = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(10)\n"
        f"        open({str(site.root / OTHER)!r}, 'a').write('late')\n        os._exit(0)\n"
        "    os._exit(0)\nos.wait()\n"
    )
    before = site.tree()
    script(site, late)

    warnings = site.ok("--check")["patches"][0]["warnings"]

    assert warnings == ["./apply.py left 1 process behind, ended by hsops"]
    assert site.tree() == before


def test_a_script_that_changes_nothing_was_run_by_hand(site: Site) -> None:
    """hsops would not know what to bring back."""
    script(site)
    text = (site.folder / "apply.py").read_text().replace('assert "twenty" not in text, "patched already"\n', "")
    (site.folder / "apply.py").write_text(text)
    site.write(MODEL, CHANGED)

    assert "./apply.py changes nothing here" in site.refused()


def test_files_right_below_root_are_changed_too(site: Site) -> None:
    """A new one and one that is replaced by a rename: there the script sees the copy alone."""
    site.write("top.py", "a\n")
    before = site.tree()
    (site.folder / "apply.py").write_text(
        "import os\nopen('top.tmp', 'w').write('b\\n')\nos.replace('top.tmp', 'top.py')\n"
        "open('fresh.py', 'w').write('c\\n')\n"
    )
    site.patches("  hand: { kind: script, run: ./apply.py, files: [top.py, fresh.py] }\n")

    site.ok()

    assert (site.root / "top.py").read_text() == "b\n" and (site.root / "fresh.py").read_text() == "c\n"
    site.ok("--revert")
    assert site.tree() == before


def test_without_a_view_of_its_own_a_script_that_uses_its_folder_is_as_good(site: Site) -> None:
    """Where unshare is forbidden: the folder, the import and {root} still lead to the copy."""
    before = site.tree()
    script(site, "import sglang\nassert os.path.realpath(sglang.__file__).startswith(os.path.realpath(sys.argv[1]))\n")

    found = agent(site, "no", args=["{root}"])

    assert found["private"] is False and list(found["files"]) == [MODEL]
    assert site.tree() == before and not scratch(site).exists()


@pytest.mark.parametrize("more", ["", "sys.exit(1)\n"], ids=["exit 0", "exit 1"])
def test_without_a_view_of_its_own_what_was_written_to_the_real_files_is_brought_back(more: str, site: Site) -> None:
    """Overwritten in place with the old time stamp, deleted, created, replaced by a link; each is named.

    What lies in other folders can only be told.
    """
    site.write("elsewhere/far.py", "far\n")
    os.utime(site.root / OTHER, ns=(10**18, 10**18))
    before = {path: told for path, told in site.tree().items() if not path.startswith("elsewhere")}
    script(
        site,
        f"os.chdir({str(site.root)!r})\n"
        f"told = os.stat('{OTHER}'); open('{OTHER}', 'r+').write('OTHER')\n"
        f"os.utime('{OTHER}', ns=(told.st_mtime_ns,) * 2)\n"
        "os.unlink('sglang/version.py')\nos.makedirs('sglang/deep')\nopen('sglang/deep/x.py', 'w').write('x')\n"
        f"os.unlink('{MODEL}'); os.symlink('/etc/passwd', '{MODEL}')\nopen('elsewhere/far.py', 'a').write('x')\n{more}",
    )

    with pytest.raises(AgentError) as caught:
        agent(site, "no")

    assert caught.value.code == "script-escaped"
    assert caught.value.detail["files"] == ["sglang/deep/x.py", MODEL, OTHER, "sglang/version.py"]
    aside = Path(caught.value.detail["aside"])
    assert f"kept in {aside}" in caught.value.message and aside.is_relative_to(site.folder.parent / "state/aside/hand")
    assert {
        str(p.relative_to(aside)): p.read_bytes() for p in aside.rglob("*") if p.is_file() and not p.is_symlink()
    } == {
        "sglang/deep/x.py": b"x",
        OTHER: b"OTHER\n",
    }
    assert os.readlink(aside / MODEL) == "/etc/passwd"
    assert caught.value.detail["lost"] == ["elsewhere/far.py"] and "NOT brought back" in caught.value.message
    assert {path: told for path, told in site.tree().items() if not path.startswith("elsewhere")} == before
    assert (site.root / OTHER).stat().st_mtime_ns == 10**18 and not (site.root / "sglang/deep").exists()


def test_what_others_write_while_a_script_is_watched_is_kept(site: Site) -> None:
    """Nobody can tell whose it is: it is taken away with the script's own work, and lies where the refusal says."""
    script(site, f"open({str(site.root / 'theirs.py')!r}, 'w').write('a colleague wrote this\\n')\n")
    before = site.tree()

    with pytest.raises(AgentError) as caught:
        agent(site, "no")

    (kept,) = Path(caught.value.detail["aside"]).iterdir()
    assert (kept.name, kept.read_text()) == ("theirs.py", "a colleague wrote this\n") and site.tree() == before
    assert "or somebody else wrote below" in caught.value.message


@pytest.mark.parametrize("private", ["auto", "no"])
def test_an_agent_that_is_killed_while_the_script_runs_leaves_nothing(private: str, site: Site) -> None:
    """The next verb ends what still runs, brings back what was written to the real files, and says so."""
    before = site.tree()
    told = site.folder / "told"
    real = f"open({str(site.root / OTHER)!r}, 'a').write('half')\n" if private == "no" else ""
    script(
        site,
        f"{real}child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(told)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}} {{os.getppid()}}')\n"
        f"os.rename({str(told)!r} + '.new', {str(told)!r})\ntime.sleep(600)\n",
    )
    errors: list[BaseException] = []

    def run() -> None:
        try:
            agent(site, private, timeout=100)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until = time.monotonic() + 60
    while not told.exists():
        assert time.monotonic() < until and not errors, errors
        time.sleep(0.02)
    script_pid, child, verb = map(int, told.read_text().split())
    os.kill(verb, signal.SIGKILL)
    thread.join(60)

    assert not thread.is_alive() and errors
    assert wait_gone(script_pid)
    assert scratch(site).exists()
    site.agents.clear()
    assert site.states() == {"hand": "absent"}
    assert wait_gone(child)
    assert site.tree() == before and not scratch(site).exists()


def test_ctrl_c_ends_the_script_on_the_host(site: Site) -> None:
    """And its copy goes with the next command."""
    told = site.folder / "told"
    script(site, f"open({str(told)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n", options=", timeout: 300")
    client = subprocess.Popen(
        [sys.executable, "-m", "hsops", "deploy", "--check"],
        cwd=site.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not told.exists() or not told.read_text():
            assert time.monotonic() < until and client.poll() is None
            time.sleep(0.02)

        client.send_signal(signal.SIGINT)

        assert client.wait(30) == 130
    finally:
        client.kill()
    assert wait_gone(int(told.read_text()))
    assert site.states() == {"hand": "absent"} and not scratch(site).exists()


def test_a_script_is_shown_as_json_with_its_output(site: Site) -> None:
    """By the process itself: one envelope, the code, the last lines."""
    script(site, "print('almost'); sys.exit(4)\n")

    done = subprocess.run(
        [sys.executable, "-m", "hsops", "deploy", "--json", "--yes"],
        cwd=site.folder, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip

    (error,) = json.loads(done.stdout)["errors"]
    assert (done.returncode, error["code"], error["detail"]["exit"]) == (1, "script-failed", 4)
    assert error["detail"]["output"] == [f"patched {MODEL}", "almost"]
