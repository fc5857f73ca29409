"""Rules about the host beside its GPUs: Python, room, limits, tools, clocks, models, ports. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hsops.core.capturable import refusal
from hsops.core.units import size
from hsops.doctor.findings import Facts, Finding

_SHM_FLOOR = 1 << 30  # Docker's default is 64 MiB; NCCL and a TP group want hundreds of MiB
_ROOM_FLOOR = 1 << 30
_CACHE_FLOOR = 5 << 30
_NOFILE = 65535  # what SGLang tries to raise it to
_SKEW_S = 5.0
_NO_LINKS = {"vfat", "exfat", "msdos", "fuse.s3fs", "fuse.gcsfuse", "fuse.goofys", "fuse.mountpoint-s3", "fuse.rclone"}
_SHARED = {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "afs", "gfs2", "ocfs2"}
_LOCAL = "hosts.<name>.state_dir in inventory.yaml: a folder on the host's own disk"
_ONE = "name one login node in hosts.<name>.ssh, and not a round robin of several"


def python(facts: Facts) -> Iterator[Finding]:
    """SGLang and torch where servers are to run."""
    hello = facts.look("hello") or {}
    level, named = ("blocker", ", ".join(s.name for s in facts.servers)) if facts.servers else ("warning", "")
    if hello and not hello["sglang"]["version"]:
        yield Finding(
            level,  # type: ignore[arg-type]
            "python",
            f"{hello['executable']} finds no SGLang",
            f"{named} cannot be launched" if named else "",
            "hosts.<name>.python in inventory.yaml: the interpreter that runs SGLang",
        )
    elif hello and facts.look("torch") is None and not facts.blind("torch"):
        yield Finding(level, "python", f"{hello['executable']} finds no torch", "SGLang needs it", "pip install torch")  # type: ignore[arg-type]


def capture(facts: Facts) -> Iterator[Finding]:
    """An SGLang that deploy would refuse, where a server has hs-dump."""
    version = ((facts.look("hello") or {}).get("sglang") or {}).get("version") or ""
    for method in dict.fromkeys(server.capture for server in facts.servers if server.capture):
        if error := refusal(version, method):
            yield Finding("blocker", "python", error.message, error.why, error.fix)


def room(facts: Facts) -> Iterator[Finding]:
    """Folders that are full, tiny, or not ours to write."""
    for path, folder in _folders(facts):
        if path == facts.dumps and not folder["writable"]:
            yield Finding(
                "blocker",
                "space",
                f"dumps cannot be written to {path}",
                "",
                "hosts.<name>.dumps in inventory.yaml, or chmod",
            )
        elif path == "/dev/shm" and folder["total"] < _SHM_FLOOR:  # noqa: S108 - looked at only
            yield Finding(
                "blocker" if facts.gpus else "warning",
                "space",
                f"{path} has {size(folder['total'])} in all",
                "ranks of a TP group and NCCL share memory there; a container's default is 64 MiB",
                "docker run --shm-size=32g, or --ipc=host; mount -o remount,size=... /dev/shm",
            )
        elif folder["free"] < _ROOM_FLOOR:
            yield Finding("warning", "space", f"{path} has {size(folder['free'])} free", "", f"du -xsh {path}/*")
        elif facts.gpus and path.endswith(("cache", ".triton")) and folder["free"] < _CACHE_FLOOR:
            yield Finding(
                "warning",
                "space",
                f"{path} has {size(folder['free'])} free",
                "compiled kernels are kept there",
                "free some",
            )


def put_aside(facts: Facts) -> Iterator[Finding]:
    """Dumps that are there, but not under their names."""
    for path, count in (facts.look("aside") or {}).items():
        what = f"{count} files of {path} have another name since a fetch --evict was killed"
        yield Finding(
            "warning", "space", what, "nothing is lost", "hsops fetch or hsops extract gives them their names"
        )


def state(facts: Facts) -> Iterator[Finding]:
    """Whether the host's lock can be trusted where hsops' own folder lies: it is made of hard links and flock."""
    found = facts.look("state") or {}
    kind, options = found.get("type", ""), found.get("options", "").split(",")
    said = f"{found.get('path')} (state_dir) lies on {kind}"
    if facts.jobs and kind == "tmpfs":
        why = "the login node's memory: a compute node sees neither the run nor the agent that is to start it"
        yield Finding("blocker", "lock", said, why, "hosts.<name>.state_dir: a folder that both see")
    if kind in _NO_LINKS:
        why = "it has no hard links, of which the host's lock is made: deploy, launch and stop are refused"
        yield Finding("blocker", "lock", said, why, _LOCAL)
    elif kind in _SHARED or kind.startswith("fuse."):
        local = {"nolock", "local_lock=all", "local_lock=flock"}.intersection(options)
        why = "a deploy that stands still on one machine cannot be ended from another that shares it, and their clocks"
        why += " must agree to a few seconds"
        if local:
            why = f"mounted with {min(local)}, its locks hold on one machine only; " + why
        fix = _ONE if facts.jobs else _LOCAL  # which compute nodes must see as well
        yield Finding("warning", "lock", f"{said} ({found.get('source')})", why, fix)


def limits(facts: Facts) -> Iterator[Finding]:
    """What a server started here inherits."""
    found = facts.look("limits") or {}
    if 0 <= found.get("nofile_hard", -1) < _NOFILE:
        yield Finding(
            "warning",
            "limits",
            f"at most {found['nofile_hard']:,} open files a process",
            "SGLang raises its own limit to 65,535 and cannot here; many requests at once need one each",
            "nofile in /etc/security/limits.conf, or LimitNOFILE of sshd's unit",
        )
    if facts.gpus and 0 <= found.get("memlock_soft", -1) < 64 << 20:
        yield Finding(
            "warning",
            "limits",
            f"at most {size(found['memlock_soft'])} of locked memory a process",
            "NCCL over InfiniBand locks its buffers",
            "memlock unlimited in /etc/security/limits.conf; docker run --ulimit memlock=-1",
        )
    limit = (facts.look("kernel") or {}).get("memory_limit")
    total = (facts.look("memory") or {}).get("MemTotal")
    if limit and total and limit < total // 2:
        yield Finding(
            "warning",
            "limits",
            f"this control group may use {size(limit)} of the host's {size(total)}",
            "dumps in /dev/shm count against it, and the OOM killer strikes inside it",
            "a larger memory limit for the container",
        )
    kills = (facts.look("memory") or {}).get("oom_kills") or 0
    if kills:
        yield Finding(
            "warning",
            "limits",
            f"the OOM killer struck {kills} times since boot",
            "",
            "journalctl -k | grep -i 'killed process'",
        )


def insight(facts: Facts) -> Iterator[Finding]:
    """Whether diagnose could look into a hung server."""
    kernel, hello = facts.look("kernel") or {}, facts.look("hello") or {}
    if not kernel.get("root") and (kernel.get("ptrace_scope") or 0) > 0:
        yield Finding(
            "warning",
            "look",
            f"kernel.yama.ptrace_scope is {kernel['ptrace_scope']} and this user is not root",
            "hsops diagnose could read neither stacks nor system calls of a hung server",
            "sysctl kernel.yama.ptrace_scope=0, or log in as root",
        )
    missing = [name for name, there in (
        ("py-spy", (hello.get("packages") or {}).get("py-spy")), ("strace", (facts.look("tools") or {}).get("strace"))
    ) if hello and not there]  # fmt: skip
    if missing and facts.servers:
        yield Finding(
            "warning",
            "look",
            f"{' and '.join(missing)} not found",
            "hsops diagnose tells a busy wait from work by them",
            "pip install py-spy; apt-get install strace",
        )


def clock(facts: Facts) -> Iterator[Finding]:
    """Logs are read by their stamps."""
    if facts.skew_s is not None and abs(facts.skew_s) > _SKEW_S:
        ahead = "ahead of" if facts.skew_s > 0 else "behind"
        yield Finding(
            "warning",
            "client",
            f"its clock is {abs(facts.skew_s):,.0f} s {ahead} ours",
            "times of runs and of dumps will look odd",
            "timedatectl set-ntp true, on both",
        )


def models(facts: Facts) -> Iterator[Finding]:
    """The weights that servers want."""
    for server in facts.servers:
        found = facts.look(f"model {server.model}")
        if not found or not found["local"]:
            continue
        if not found["exists"]:
            yield Finding(
                "blocker",
                "server",
                f"{server.name}: there is no model at {server.model}",
                "",
                "servers.<name>.model in inventory.yaml",
            )
        elif missing := found.get("missing"):
            yield Finding(
                "blocker",
                "server",
                f"{server.name}: {len(missing)} of {found['shards']} weight files are missing ({missing[0]})",
                "a download that was not finished; loading will fail after minutes",
                "download the model again: only what is missing is fetched",
            )
        elif found.get("config") is False:
            yield Finding(
                "blocker", "server", f"{server.name}: {server.model} has no config.json", "it is no model's folder", ""
            )


def ports(facts: Facts) -> Iterator[Finding]:
    """Ports that somebody else has."""
    listeners: Mapping[str, Any] = facts.look("ports") or {}
    for server in facts.servers:
        there = listeners.get(str(server.port))
        if there and not facts.owners.get(there["pid"]):
            who = f"pid {there['pid']} ({(there['command'] or '')[:60]})" if there["pid"] else "somebody who hides"
            yield Finding(
                "blocker",
                "server",
                f"{server.name}: port {server.port} is taken by {who}",
                "",
                "servers.<name>.port: auto, or end that process",
            )


def strangers(facts: Facts) -> Iterator[Finding]:
    """SGLang processes that no run owns: another's server, or what one left behind."""
    known = {orphan["pid"] for orphan in facts.look("orphans") or ()}
    strange = [p for p in facts.look("processes") or () if not p["run"] and p["pid"] not in known]
    if strange:
        pids = ", ".join(str(p["pid"]) for p in strange[:8])
        yield Finding(
            "warning",
            "server",
            f"{len(strange)} SGLang processes belong to no run of hsops: pid {pids}",
            "another's server: it takes memory, and perhaps a port",
            f"ps -fp {pids.replace(' ', '')}; hsops touches only what it started",
        )


def orphans(facts: Facts) -> Iterator[Finding]:
    """Processes that nobody looks after, but for holders of GPU memory: that rule has the GPUs' names."""
    for orphan in facts.look("orphans") or ():
        if orphan["kind"] == "gpu-memory":
            continue
        gone = "launcher" if orphan["kind"] == "no-launcher" else f"supervisor of run {orphan['run']}"
        yield Finding(
            "warning",
            "server",
            f"pid {orphan['pid']} ({orphan['command'][:60]}) lives on, its {gone} is gone",
            "it may hold memory, a port or a GPU, and nobody records how it ends",
            orphan["refused"] or f"hsops stop --orphan {orphan['pid']} shows what it is, asks, and ends it",
        )


def _folders(facts: Facts) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, found in facts.raw.items():
        if name.startswith("folder ") and found:
            yield name.removeprefix("folder "), found
