"""ansible-playbook and pyinfra as their users would write this deploy, each in a virtual environment of its own."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

from platformdirs import user_cache_path

from benchmarks._deploy_target import Target
from hsops.deploy.payload import PACKAGE
from hsops.payload.hsops_hs_dump.strategy import REGISTRY_FILE

PINS = {"ansible": "ansible-core==2.19.14", "pyinfra": "pyinfra==3.10.0"}

PLAY = """\
- hosts: all
  gather_facts: false
  tasks:
    - {task}
    - command: test -s {site}/{package}/config.json
      changed_when: false
"""
COPY = "copy: {{ src: {tree}/, dest: {site}/ }}"
UNARCHIVE = "unarchive: {{ src: {tar}, dest: {site}/ }}"

PYINFRA = """\
from pyinfra.operations import files, server
files.sync(src="{tree}/{package}", dest="{site}/{package}")
files.put(src="{tree}/{registry}", dest="{site}/{registry}")
server.shell(commands=["test -s {site}/{package}/config.json"])
"""
HOSTS = """\
targets = [("127.0.0.1", {{
    "ssh_port": {port}, "ssh_user": "{user}", "ssh_key": "{folder}/client_key",
    "ssh_known_hosts_file": "{folder}/known_hosts", "ssh_strict_host_key_checking": "yes", "_shell_executable": "sh",
}})]
"""


def installed(name: str) -> Path:
    """The virtual environment of a peer, made once under the user's cache folder."""
    folder = user_cache_path("hsops") / "bench" / PINS[name].replace("==", "-")
    if not (folder / "ready").exists():
        print(f"installing {PINS[name]} under {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", PINS[name]], check=True)
        (folder / "ready").touch()
    return folder


class Ansible:
    """``ansible-playbook`` with one task that brings the files and one ``command``; pipelining on, no facts gathered.

    Args:
        target: where.
        task: ``COPY`` or ``UNARCHIVE``.
        persist: ControlPersist, its default: tasks, and a run within 60 s, share a connection.
    """

    def __init__(self, target: Target, task: str, *, persist: bool) -> None:
        self.target, self.name = target, f"{task.split(':', maxsplit=1)[0]}{'' if persist else '-cold'}"
        self.folder = target.base / self.name
        self.folder.mkdir()
        told = {"tree": target.tree, "tar": target.tar, "site": target.site, "package": PACKAGE}
        (self.folder / "play.yaml").write_text(PLAY.format(task=task.format(**told), **told))
        (self.folder / "hosts").write_text(f"{target.alias} ansible_python_interpreter={target.python}\n")
        self.persist = persist

    def argv(self) -> list[str]:
        """The command line."""
        return [str(installed("ansible") / "bin/ansible-playbook"), "-i", "hosts", "play.yaml"]

    def env(self) -> dict[str, str]:
        """Settings, as environment."""
        share = "-o ControlMaster=auto -o ControlPersist=60s" if self.persist else "-o ControlMaster=no"
        return {
            "ANSIBLE_HOME": str(self.folder),
            "ANSIBLE_SSH_ARGS": f"-F {self.target.config} {share}",
            "ANSIBLE_SSH_CONTROL_PATH": str(self.folder / "m"),
            "ANSIBLE_PIPELINING": "1",
        }

    def forget(self) -> None:
        """End the shared connection."""
        if (self.folder / "m").exists():
            command = ["ssh", "-F", str(self.target.config), "-o", f"ControlPath={self.folder}/m"]
            subprocess.run([*command, "-O", "exit", self.target.alias], check=True, capture_output=True)


class Pyinfra:
    """``pyinfra`` with files.sync, files.put and server.shell."""

    name = "pyinfra"

    def __init__(self, target: Target) -> None:
        self.folder = target.base / self.name
        self.folder.mkdir()
        told = {"tree": target.tree, "site": target.site, "package": PACKAGE, "registry": REGISTRY_FILE}
        (self.folder / "deploy.py").write_text(PYINFRA.format(**told))
        user = pwd.getpwuid(os.getuid()).pw_name
        (self.folder / "hosts.py").write_text(HOSTS.format(port=target.port, user=user, folder=target.base / "sshd"))

    def argv(self) -> list[str]:
        """The command line."""
        return [str(installed("pyinfra") / "bin/pyinfra"), "-y", "hosts.py", "deploy.py"]

    def env(self) -> dict[str, str]:
        """Nothing to set."""
        return {}

    def forget(self) -> None:
        """It holds no connection."""
