"""Runs on the host: start, list, follow, stop."""

import contextlib
import errno
import fcntl
import glob
import json
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

from hsops.agent import audit, claims, facts, leases, lock, patch_store, probe_faults, procs, prune, slurm, strangers
from hsops.agent.protocol import PROTOCOL, Refusal
from hsops.agent.rundir import STARTING_S, RunDir, all_runs, read_json, runs_folder, write_json

_SECRET = re.compile(r"(?i)(token|secret|password|api_?key)")
_SECRET_FLAG = re.compile(r"(?i)--[\w-]*(api-key|token|password|secret)\Z")
_AUTO = range(20000, 32000)  # below net.ipv4.ip_local_port_range, so that no outgoing connection takes it meanwhile


def start(params: "dict[str, Any]") -> "dict[str, Any]":
    """Start a server under a supervisor of its own and return at once.

    ``params``: server, model, tp, port (0: a free one), host (that it listens on), argv, env, spec_hash, dump_dir ("":
    none), patches, needs (importable packages), restart (``restart.decide``; none: never), slurm (``slurm.submit``;
    none: it is started here); of a server on several hosts also node (rank, of, hosts, first and ranks: those that are
    here) and run: its id. Filled in are ``{python}``, ``{model}`` and ``{port}`` in argv, and
    ``{run}``, ``{run_dir}``, ``{dump_dir}`` and ``{:PYTHONPATH}`` (the host's behind a colon, or nothing) in env.

    Raises:
        Refusal: no-sglang, model-missing, dump-dir-not-writable, dump-dir-taken, port-taken, port-unusable, run-there,
            already-running, changed-meanwhile, not-started, locked, lock-lost (``lock.held``); as ``slurm.submit``.
    """
    with lock.held(params) as held, _locked(params):
        sglang = facts.sglang()
        if "sglang" in params["needs"] and not sglang["root"]:
            raise Refusal("no-sglang", f"{sys.executable} has no sglang", python=sys.executable)
        model, dump_dir = _model(str(params["model"])), dump_folder(params.get("dump_dir", ""))
        _refuse_second(params, dump_dir)
        _refuse_changed(params)
        wanted, listen, job = int(params["port"]), str(params.get("host") or "127.0.0.1"), params.get("slurm")
        port = wanted if job else free_port(wanted, listen)
        run = _new_run(params)
        env = {name: _filled(value, run, dump_dir) for name, value in params["env"].items()}
        known = {"{python}": sys.executable, "{model}": model, "{port}": "{port}" if job else str(port)}
        argv = [known.get(word, word) for word in params["argv"]]
        spec = {
            "id": run.id,
            "created": time.time(),
            "where": leases.where(),
            "argv": _masked(argv),
            "env": _shown(env),
            "port": port,
            "wanted_port": wanted,
            "listen": listen,
            "dump_dir": dump_dir,
            "sglang": sglang["version"] or "",
            "site": sglang["site"] or "",
            **{name: params.get(name) for name in ("restart", "node")},
            **{name: params[name] for name in ("server", "model", "tp", "spec_hash", "patches")},
        }
        held.check()
        _hand_over(run, spec, {"argv": argv, "env": env}, job)
        return {"run": run.describe(), "warning": _tidy(params, run)}


def _hand_over(run: RunDir, spec: "dict[str, Any]", secrets: "dict[str, Any]", job: "dict[str, Any] | None") -> None:
    """To a supervisor here, or to Slurm, which starts one on another host."""
    if not job and secrets["argv"] != spec["argv"]:
        run.write("secrets.json", {"argv": secrets["argv"]})
    run.write("spec.json", spec)
    if job:
        slurm.submit(run, job, secrets)
    else:
        _launch(run, secrets["env"])


def _tidy(params: "dict[str, Any]", run: RunDir) -> str:
    """What a launch does besides. The server is there by now: what fails is told, and fails no launch."""
    told = {"action": "launch", **lock.who(params), "server": params["server"], "run": run.id}
    what = "the audit log lacks this launch"
    try:
        audit.append(params["state_dir"], {**told, "patches": params["patches"], "outcome": "done"})
        what = "old runs stay"
        prune.prune(os.path.expanduser(params["state_dir"]))
    except Exception as error:  # noqa: BLE001 - whatever it is
        return f"{what}: {error}"
    return ""


def _shown(env: "dict[str, str]") -> "dict[str, str]":
    return {name: "***" if _SECRET.search(name) else value for name, value in env.items()}


def _masked(argv: "list[str]") -> "list[str]":
    """Without the values of flags that take a secret: spec.json is what people copy into a report."""
    pairs = [(word, word.partition("="), before) for word, before in zip(argv, ["", *argv], strict=False)]
    return [
        "***" if _SECRET_FLAG.match(before) else f"{name}=***" if equals and _SECRET_FLAG.match(name) else word
        for word, (name, equals, _), before in pairs
    ]


def _filled(value: str, run: RunDir, dump_dir: str) -> str:
    known = f":{os.environ['PYTHONPATH']}" if os.environ.get("PYTHONPATH") else ""
    value = value.replace("{run_dir}", run.path).replace("{run}", run.id).replace("{dump_dir}", dump_dir)
    return value.replace("{:PYTHONPATH}", known)


def _refuse_second(params: "dict[str, Any]", dump_dir: str) -> None:
    """One run a server, and one a dump folder, which another name or another client's state may have begun."""
    for run in all_runs(runs_folder(params)):
        spec = run.read("spec.json")
        same = bool(dump_dir) and os.path.realpath(spec.get("dump_dir") or "/") == os.path.realpath(dump_dir)
        if not (same or spec.get("server") == params["server"]) or not run.busy():
            continue
        if spec.get("server") == params["server"]:
            raise Refusal("already-running", f"run {run.id} of {params['server']} is there", run=run.id)
        raise _taken(dump_dir, f"run {run.id} of {spec['server']}")
    if dump_dir and (who := claims.holder(dump_dir)):
        raise _taken(dump_dir, who)


def _taken(dump_dir: str, who: str) -> Refusal:
    return Refusal("dump-dir-taken", f"{who} writes dumps into {dump_dir}", path=dump_dir, by=who)


def loaded(params: "dict[str, Any]", root: str) -> "list[dict[str, Any]]":
    """What the running servers have loaded: ``id``, ``server``, ``patches`` {name: identity}, ``created``, and
    ``reads``: whether they read files below ``root``, as far as can be told."""
    alive = [run.read("spec.json") for run in all_runs(runs_folder(params)) if run.running()]
    told = ("id", "server", "patches", "created")
    return [{**{name: spec.get(name) for name in told}, "reads": _reads(spec, root)} for spec in alive]


def _reads(spec: "dict[str, Any]", root: str) -> bool:
    """SGLang, its model, or a path that its PYTHONPATH or its command line names leads to ``root``: ``leads``."""
    named = [*strangers.imports(spec.get("env") or {}), *strangers.values(spec.get("argv") or ())]
    return strangers.leads(named, [spec.get("site", root), spec.get("model") or ""], root)


def _refuse_changed(params: "dict[str, Any]") -> None:
    """The patches are still those that the client looked at: somebody may have deployed in between."""
    for patch, identity in params["patches"].items():
        folder = os.path.join(patch_store.patches_folder(params["state_dir"]), patch)
        records = glob.glob(os.path.join(glob.escape(folder), "*/record.json"))
        if identity not in [read_json(path).get("identity") for path in records]:
            message = f"patch {patch} changed since it was looked at"
            raise Refusal("changed-meanwhile", message, patch=patch)


def list_runs(params: "dict[str, Any]") -> "dict[str, Any]":
    """Runs, newest first. ``params``: server or None; limit; alive: only those whose server is there; or ``loaded``, a
    folder, or ``source`` for the one that holds SGLang: what those have loaded, see there, and the ``strangers``."""
    if "loaded" in params:
        root = params["loaded"] if params["loaded"] != "source" else facts.sglang()["site"] or "/"
        ours = loaded(params, root)
        return {"runs": ours + strangers.strangers(os.path.realpath(root), {run["id"] for run in ours})}
    wanted = params.get("server")
    found: list[dict[str, Any]] = []
    snapshot = procs.Snapshot()
    for run in all_runs(runs_folder(params)):
        if len(found) >= params.get("limit", 20):
            break
        server = run.read("spec.json").get("server")
        if server and wanted in (None, server) and not (params.get("alive") and not run.running()):
            found.append(run.describe(snapshot))
    return {"runs": found}


def _launch(run: RunDir, env: "dict[str, str]") -> None:
    """Fork a supervisor that owes nothing to this process, and wait until it has started the server."""
    mine, its = os.pipe()
    os.set_inheritable(its, True)
    request = {"protocol": PROTOCOL, "params": {"run_dir": run.path, "ready": its, "env": environment(run, env)}}
    where = os.path.join(run.path, "request.json")
    write_json(where, request)
    first = os.fork()
    if first == 0:
        _become_supervisor(run, where)
    os.close(its)
    os.waitpid(first, 0)
    try:
        with os.fdopen(mine, "rb") as pipe:
            answer = _read_within(pipe.fileno(), STARTING_S)
    finally:
        os.unlink(where)  # it holds the whole environment
    reply = json.loads(answer) if answer else {"error": _last_line(os.path.join(run.path, "supervisor.log"))}
    if "error" in reply:
        raise Refusal("not-started", f"the server did not start: {reply['error']}", run=run.id)


def environment(run: RunDir, env: "dict[str, str]") -> "dict[str, str]":
    """The server's: this host's with ``env``."""
    path = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', os.defpath)}"  # ninja, py-spy of the venv
    whole = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", **env, procs.MARK: run.mark()}
    with contextlib.suppress(OSError):  # without it a diagnosis needs ptrace; a full disk ends the launch elsewhere
        whole["PYTHONPATH"] = probe_faults.prepare(run.path, whole.get("PYTHONPATH", ""))
    return whole


def _become_supervisor(run: RunDir, request: str) -> None:
    """In the forked child: a session of its own, a second fork, then the agent again as ``run-exec``."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        log = os.open(os.path.join(run.path, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(request, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        agent = os.path.abspath(sys.argv[0])
        os.execv(sys.executable, [sys.executable, "-I", agent, "run-exec"])  # noqa: S606 - our own interpreter
    finally:
        os._exit(127)


def _read_within(fd: int, seconds: float) -> bytes:
    ready, _, _ = select.select([fd], [], [], seconds)
    return os.read(fd, 65536) if ready else b""


def _last_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return (file.read().strip().splitlines() or ["no answer from the supervisor"])[-1]
    except OSError:
        return "no answer from the supervisor"


def _model(model: str) -> str:
    """The model's path with ``~`` expanded; a hub id as it is."""
    if not model.startswith(("/", "~", ".")):
        return model
    path = os.path.expanduser(model)
    if not os.path.exists(path):
        raise Refusal("model-missing", f"there is no model at {model}", model=model)
    return path


def dump_folder(folder: str) -> str:
    """Where dumps go, made and tried; "" for none.

    Raises:
        Refusal: dump-dir-not-writable.
    """
    if not folder:
        return ""
    path = os.path.expanduser(folder)
    probe = os.path.join(path, f".hsops-{os.getpid()}")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        with open(probe, "wb") as file:
            file.write(b"x")
        os.unlink(probe)
    except OSError as error:
        message = f"dumps cannot be written to {folder}: {error.strerror}"
        raise Refusal(
            "dump-dir-not-writable", message, path=folder, errno=errno.errorcode.get(error.errno or 0)
        ) from None
    return path


def free_port(port: int, host: str) -> int:
    """``port`` if it is free, or a free one for 0.

    Raises:
        Refusal: port-taken, port-unusable.
    """
    import random  # and socket: 10 ms that only a start needs

    for candidate in [port] if port else random.sample(_AUTO, 200):
        fault = _bind(candidate, host)
        if fault is None:
            return candidate
        if fault.errno != errno.EADDRINUSE:
            raise Refusal("port-unusable", f"cannot listen on {host}:{candidate}: {fault.strerror}", port=candidate)
    holder = procs.listener(port) or {"pid": None, "command": None}
    by = f" by pid {holder['pid']} ({holder['command']})" if holder["pid"] else ""
    raise Refusal("port-taken", f"port {port or 'auto'} is taken{by}", port=port, **holder)


def _bind(port: int, host: str) -> "OSError | None":
    """Why ``host:port`` cannot be listened on; None when it can."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except socket.gaierror:
            return None  # a name that only the server can resolve: let it speak
        except OSError as error:
            return error
    return None


def _new_run(params: "dict[str, Any]") -> RunDir:
    folder, given = runs_folder(params), params.get("run")
    while True:
        name = given or f"{time.strftime('%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        path = os.path.join(folder, name)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if given:
                raise Refusal("run-there", f"run {name} is in {folder} already", run=name) from None
            continue
        return RunDir(path)


@contextlib.contextmanager
def _locked(params: "dict[str, Any]") -> "Iterator[None]":
    """One start at a time on this host: two clients must not both find the port free."""
    folder = runs_folder(params)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    fd = os.open(os.path.join(folder, ".start.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
