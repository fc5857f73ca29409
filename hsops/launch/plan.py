"""From a server of the inventory to the command that starts it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hsops.core.command import Command
from hsops.core.errors import ConfigError, Fault
from hsops.core.inventory import HostSpec, Scalar, ServerSpec
from hsops.core.runs import Node
from hsops.core.secret import MASK, is_secret_flag, is_secret_variable, value_of
from hsops.launch import env_lint, flags, hook, job, nccl, needs, spanning

Path_ = tuple[str, ...]
Args = dict[str, Scalar | list[Scalar]]  # flags without dashes
_LEAVE_OUT = "take them out; or take the hs-dump patch out of servers.{server}.patches, to serve without capture"
# fields of a server that SGLang takes as flags: a second value in args would contradict the first
_FIELDS = {
    "model": "model", "model-path": "model", "port": "port",
    "tp": "tp", "tp-size": "tp", "tensor-parallel-size": "tp",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deployed:
    """What is on the host.

    Args:
        sglang: its version; "" when unknown.
        patches: name -> identity of the patches of this server that are applied.
        flags: those of ``needs.ADDED`` that its SGLang has; None when nobody looked.
        hook: the folder on the host that the payload lies in, with ``method: hook``; "" without.
        lacks: patches that are not applied as the inventory says: entries of the envelope's ``errors``.
    """

    sglang: str
    patches: Mapping[str, str]
    flags: frozenset[str] | None = None
    hook: str = ""
    lacks: tuple[dict[str, Any], ...] = ()


def nowhere(path: Path_, message: str) -> Fault:
    """A fault of the inventory whose line nobody can tell."""
    return Fault("inventory", 0, 0, ".".join(map(str, path)), message)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start.

    Args:
        server: its name; host: the host's.
        argv: words; ``{python}``, ``{model}`` and ``{port}`` are filled in on the host, ``{dist}`` by ``meeting``.
        env: added to the environment of the host's user.
        model, tp, port: of the server; port 0 means a free one.
        listen: the address it listens on.
        dump_dir: on the host; "" without hs-dump.
        deployed: what it was planned for.
        notes: what was added, and why; for people.
        spec_hash: equal for equal plans.
        secrets: values never to show.
        origins: variable of ``env`` -> who sets it.
        restart: when the host starts it again; None: never.
        job: what Slurm is asked for, as ``job.request`` makes it; None: it is started on the host itself.
        node: which part of a server over several hosts this is; None: it is on one.
        dist: where its nodes meet, host:port; "" while that is open.
        run: the id that it gets, the same on all nodes; "": its host gives it one.
    """

    server: str
    host: str
    python: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    model: str
    tp: int
    port: int
    listen: str
    dump_dir: str
    deployed: Deployed
    notes: tuple[str, ...]
    spec_hash: str
    secrets: tuple[str, ...]
    origins: Mapping[str, str] = field(default_factory=dict)
    restart: Mapping[str, float] | None = None
    job: Mapping[str, Any] | None = None
    node: Node | None = None
    dist: str = ""
    run: str = ""

    @property
    def command(self) -> Command:
        """The command line for people, with secrets masked when printed."""
        known = {"{python}": self.python, "{model}": self.model, "{port}": str(self.port or "auto")}
        known[spanning.DIST] = self.dist or "auto"
        filled = {"{dump_dir}": self.dump_dir, "{:PYTHONPATH}": ""}
        env = {name: MASK if is_secret_variable(name) else value for name, value in self.env.items()}
        for word, value in filled.items():
            env = {name: text.replace(word, value) for name, text in env.items()}
        return Command(tuple(known.get(word, word) for word in self.argv), env, self.secrets)

    @property
    def api_key(self) -> str:
        """What probes must present; "" without."""
        return value_of(self.argv, "--api-key")

    def request(self) -> dict[str, Any]:
        """The parameters of the agent's ``run-start``."""
        return {
            "server": self.server,
            "model": self.model,
            "tp": self.tp,
            "port": self.port,
            "host": self.listen,
            "argv": [self.dist if word == spanning.DIST else word for word in self.argv],
            "env": dict(self.env),
            "spec_hash": self.spec_hash,
            "dump_dir": self.dump_dir,
            "patches": dict(self.deployed.patches),
            "needs": ["sglang"],
            "restart": dict(self.restart) if self.restart else None,
            "slurm": dict(self.job) if self.job else None,
            "node": asdict(self.node) if self.node else None,
            "run": self.run,
        }


def plan(
    server: ServerSpec,
    host: HostSpec,
    deployed: Deployed,
    *,
    captures: bool,
    machine: env_lint.Machine = env_lint.Machine(),
    parser: flags.Parser = flags.Parser(),
    fault: Callable[[Path_, str], Fault] = nowhere,
) -> Plan:
    """The command and environment of ``server``.

    Args:
        captures: one of its patches is hs-dump.
        machine: what the host has, for the environment's values.
        parser: the command line that its SGLang takes.
        fault: makes a fault of a path in the inventory, with its line.

    Raises:
        ConfigError: the server's entry contradicts itself or its patch; every fault at once.
    """
    reading = flags.read(server.args, parser)
    _refuse(server, host, machine, reading, captures=captures, fault=fault)
    args, notes = _arguments(server, deployed, reading, captures=captures)
    argv, (env, origins) = _argv(server, args), _environment(server, deployed, captures=captures)
    return Plan(
        server=server.name,
        host=host.name,
        python=host.python,
        argv=argv,
        env=env,
        model=server.model,
        tp=server.tp,
        port=0 if server.port == "auto" else int(server.port),
        listen=str(args.get("host", "127.0.0.1")),
        dump_dir=f"{host.dumps}/{server.name}" if captures else "",
        deployed=deployed,
        notes=(*notes, *env_lint.warnings(env)),
        spec_hash=_hash(argv, env, server, host, deployed),
        secrets=tuple(str(value) for name, value in args.items() if is_secret_flag(f"--{name}")),
        origins=origins,
        restart=server.restart.model_dump() if server.restart else None,
        job=job.request(server),
    )


def _refuse(
    server: ServerSpec,
    host: HostSpec,
    machine: env_lint.Machine,
    reading: flags.Reading,
    *,
    captures: bool,
    fault: Callable[[Path_, str], Fault],
) -> None:
    clashes = [*_clashes(server, reading)] if captures else []
    if faults := [*_faults(server, host, machine, reading), *clashes]:
        one_each = dict(reversed(faults))  # of two at one place the first is the more telling
        placed = [fault(("servers", server.name, *path), message) for path, message in one_each.items()]
        placed.sort(key=lambda one: (one.line, one.column))
        raise ConfigError(placed, fix=_LEAVE_OUT.format(server=server.name) if clashes else "")


def _arguments(
    server: ServerSpec, deployed: Deployed, reading: flags.Reading, *, captures: bool
) -> tuple[Args, tuple[str, ...]]:
    """The flags, without those that fields of the server stand for; and notes, one for each that was added."""
    given = {reading.flag(name): value for name, value in server.args.items()}
    added = needs.missing(given, needs.Installed(deployed.sglang, deployed.flags)) if captures else {}
    args: Args = {name: value for name, value in given.items() if name not in _FIELDS}
    notes = [*reading.notes, *(f"added --{flag}: {why}" for flag, why in added.items())]
    if deployed.hook:
        args[hook.FLAG] = hook.argument(args.get(hook.FLAG))
        notes.append(f"added --{hook.FLAG}: {hook.WHY}")
    return {**args, **dict.fromkeys(added, True)}, tuple(notes)


def _argv(server: ServerSpec, args: Args) -> tuple[str, ...]:
    words = [word for name, value in args.items() for word in _words(name, value)]
    head = ("{python}", "-m", "sglang.launch_server", "--model-path", "{model}", "--tp-size", str(server.tp))
    return (*head, "--port", "{port}", *words)


def _environment(server: ServerSpec, deployed: Deployed, *, captures: bool) -> tuple[dict[str, str], dict[str, str]]:
    """The variables, and who sets each: a source is stronger than those before it."""
    sources: tuple[tuple[str, Mapping[str, str]], ...] = (
        (f"nccl profile {server.nccl}", nccl.profiles()[server.nccl].env if server.nccl else {}),
        ("hs-dump", {"SGLANG_HS_DUMP_DIR": "{dump_dir}", "SGLANG_HS_RUN": "{run}"} if captures else {}),
        ("inventory", server.env),
        ("hs-dump", hook.environment(deployed.hook, server.env) if deployed.hook else {}),
    )
    env: dict[str, str] = {}
    origins: dict[str, str] = {}
    for who, values in sources:
        for name, value in values.items():
            over = f" (over {env[name]} of {origins[name]})" if name in env and env[name] != value else ""
            env[name], origins[name] = value, f"{who}{over}"
    return env, origins


def _faults(
    server: ServerSpec, host: HostSpec, machine: env_lint.Machine, reading: flags.Reading
) -> Iterator[tuple[Path_, str]]:
    for name, value in server.args.items():
        own = _FIELDS.get(reading.flag(name))
        if own and str(value) != str(getattr(server, own)):
            yield ("args", name), f"{value!r} contradicts {own}: {getattr(server, own)!r}; keep one"
    for name, said in reading.faults:
        yield ("args", name), said
    yield from spanning.faults(server, {reading.flag(name): name for name in server.args})
    if server.nccl and server.nccl not in nccl.profiles():
        yield ("nccl",), f"no profile {server.nccl!r}; there are {', '.join(nccl.profiles())}"
    profile = nccl.profiles().get(server.nccl or "")
    where = f"{host.name}: " if server.nodes else ""
    ranks = -(-server.tp // len(server.hosts))
    for name, said in env_lint.faults(server.env, profile.env if profile else {}, machine, ranks):
        yield ("env", name), where + said


def _clashes(server: ServerSpec, reading: flags.Reading) -> Iterator[tuple[Path_, str]]:
    """What contradicts the hs-dump patch."""
    spelt = {reading.flag(name): name for name in server.args}
    for flag, why in needs.contradictions({reading.flag(name): value for name, value in server.args.items()}).items():
        yield ("args", spelt[flag]), why
    if hook.FLAG in spelt:
        try:
            hook.argument(server.args[spelt[hook.FLAG]])
        except ValueError as error:
            yield ("args", spelt[hook.FLAG]), f"not a JSON list of hooks: {error}"
    for name in needs.OWN_ENV:
        if name in server.env:
            yield ("env", name), f"hsops sets it: dumps go below the host's dumps folder, to {server.name}"


def _words(name: str, value: Scalar | list[Scalar]) -> Iterator[str]:
    """``true`` is the bare flag, ``false`` is no flag, a list is the flag followed by its values."""
    if value is False:
        return
    yield f"--{name}"
    if value is not True:
        for item in value if isinstance(value, list) else [value]:
            yield str(item)


def _hash(argv: tuple[str, ...], env: Mapping[str, str], server: ServerSpec, host: HostSpec, deployed: Deployed) -> str:
    whole = [argv, dict(env), server.model, server.port, host.python, deployed.sglang, dict(deployed.patches)]
    whole += [server.restart.model_dump()] if server.restart else []
    whole += [server.slurm.model_dump()] if server.executor == "slurm" else []
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:12]
