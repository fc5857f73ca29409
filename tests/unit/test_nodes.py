"""A server over several hosts: its entry in the inventory, the whole of its parts, its logs, where its nodes meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hsops.core.errors import ConfigError, HsopsError
from hsops.core.inventory_file import find_server, load, select_hosts
from hsops.core.log_nodes import joined as joined_logs
from hsops.core.milestones import summarize
from hsops.core.nodes import absent, elsewhere, shares, together, whole
from hsops.core.runs import Run, parse_run
from hsops.deploy.targets import targets
from hsops.diagnose import judge
from hsops.diagnose.evidence import Evidence
from hsops.launch.plan import Deployed, Plan, plan
from hsops.launch.spanning import Seen, candidates, gloo_faults, joined, on_node

HOSTS = """\
hosts: {a: {ssh: a, python: /p}, b: {ssh: b, python: /p}, c: {ssh: c, python: /p}}
groups: {two: [a, b], three: [a, b, c]}
patches: {hs-dump: {boundaries: [1]}}
"""


def inventory(tmp_path: Path, server: str) -> Any:
    path = tmp_path / "inventory.yaml"
    path.write_text(f"{HOSTS}servers: {{big: {{model: /m, tp: 6, patches: [hs-dump], {server}}}}}\ndefault: big\n")
    return load(path)


@pytest.mark.parametrize(
    "server,hosts",
    [
        ("nodes: [b, a]", ("b", "a")),
        ("nodes: [b, a], host: b", ("b", "a")),
        ("nodes: three", ("a", "b", "c")),
        ("nodes: 2, host: three", ("a", "b")),
        ("nodes: 1, host: c", ("c",)),
        ("nodes: 1, host: two", ("a",)),
        ("nodes: [c]", ("c",)),
        ("host: c", ("c",)),
    ],
)
def test_nodes_are_a_list_a_group_or_a_number(tmp_path: Path, server: str, hosts: tuple[str, ...]) -> None:
    """The first one is its host; a server on one host has no nodes."""
    found = inventory(tmp_path, server)
    big = found.servers["big"]

    assert (big.hosts, big.host, bool(big.nodes)) == (hosts, hosts[0], len(hosts) > 1)
    assert [one.name for one in select_hosts(found, (), ())] == list(hosts)
    assert find_server(found, None, (hosts[-1],)) is big
    assert [one.host.name for one in targets(found, (), server=big, hosts=())] == list(hosts)


@pytest.mark.parametrize(
    "server,said",
    [
        ("nodes: [a, x]", "no host 'x'"),
        ("nodes: [a, a]", "'a' is named twice"),
        ("nodes: [a, b], host: b", "the first node 'a': they must be the same"),
        ("nodes: fuor", "no group 'fuor'"),
        ("nodes: []", "an empty list"),
        ("nodes: 2, host: a", "which 2 hosts?"),
        ("nodes: 2", "which 2 hosts?"),
        ("nodes: 4, host: three", "group 'three' has only 3 hosts"),
        ("nodes: 0, host: three", "got 0"),
        ("nodes: yes", "got True"),
        ("nodes: null", "got None"),
        ("nodes: [a, b], restart: {max: 1}", "not together with restart"),
    ],
)
def test_what_no_hosts_can_be_meant_by_is_one_fault(tmp_path: Path, server: str, said: str) -> None:
    """With its place, and without what would only follow from it."""
    with pytest.raises(ConfigError) as error:
        inventory(tmp_path, server)

    (fault,) = error.value.faults
    assert said in str(fault) and "inventory.yaml:4:" in str(fault)


def a_part(rank: int, **changed: Any) -> Run:
    node = {"rank": rank, "of": 2, "hosts": ["a", "b"], "first": rank, "ranks": 1}
    raw = {
        "id": "1201-100000-abcd", "server": "big", "phase": "running", "pid": 10 + rank, "started": 100.0, "port": 1,
        "tp": 2, "argv": [], "spec_hash": "s", "directory": "/r", "log": f"/{rank}.log", "dump_dir": "/d",
        "patches": {}, "sglang": "0.5.9", "exit": None, "ranks": {f"TP{rank}": None}, "helpers": {},
        "rank_pids": {f"TP{rank}": 20 + rank}, "left": [], "uptime_s": 5.0, "node": node,
        "hellos": [{"rank": rank, "ok": True}],
    }  # fmt: skip
    return parse_run({**raw, **changed})


def an_exit(time: float, code: int = 3) -> dict[str, Any]:
    return {"code": code, "signal": "", "oom": False, "time": time}


def test_the_parts_of_a_run_are_one_whole() -> None:
    """Each rank is there, with its host; no part misses the ranks of the others."""
    parts = {"a": a_part(0), "b": a_part(1)}
    run = whole(parts)

    assert run and run.alive and run.dead is None and run.silent == () and run.node is None
    assert run.ranks == {"TP0": None, "TP1": None} and run.rank_pids == {"TP0": 20, "TP1": 21}
    assert (run.host_of("TP0"), run.host_of("TP1")) == ("a", "b")
    assert a_part(1).silent == () and a_part(1, hellos=[]).silent == ("TP1",)
    assert whole({"a": a_part(0), "b": a_part(1, hellos=[])}).silent == ("TP1",)  # type: ignore[union-attr]


def test_a_part_that_ended_is_a_death_with_its_host() -> None:
    """The rank that ended first counts; a part that nobody saw the end of ended, too."""
    ended = a_part(1, phase="exited", exit=an_exit(9.0), ranks={"TP1": an_exit(8.0)})
    lost = a_part(1, phase="lost")
    first, second = whole({"a": a_part(0), "b": ended}), whole({"a": a_part(0), "b": lost})

    assert first and first.alive and first.dead and first.dead[0] == "TP1" and first.host_of("TP1") == "b"
    assert second and second.dead and second.dead[0] == "node 1 on b" and second.host_of("node 1 on b") == "b"


def test_what_is_left_of_a_run_whose_first_node_ended() -> None:
    """The processes of the others are; and a host that has nothing, or was not asked, is told."""
    run = whole({"a": a_part(0, phase="exited", exit=an_exit(9.0)), "b": a_part(1)})
    alone, only_b = whole({"a": a_part(0), "b": None}), whole({"b": a_part(1)})

    assert run and not run.alive and run.left == (11, 21)
    assert alone and [part.phase for part in alone.parts] == ["running", "absent"]
    assert only_b and only_b.phase == "unknown" and [part.phase for part in only_b.parts] == ["unknown", "running"]


def test_a_run_of_which_the_first_host_has_nothing_is_lost() -> None:
    """Whoever answers is not there; what the others still run is left over."""
    run = whole({"a": None, "b": a_part(1)})

    assert run and (run.phase, run.alive, run.left) == ("lost", False, (11, 21)) and absent(run) == ("a",)


def test_a_host_that_has_nothing_of_a_run_is_the_verdict() -> None:
    """With its ranks; less surely while the launch may be about to start them."""
    young, old = whole({"a": a_part(0), "b": None}), whole({"a": a_part(0, uptime_s=600.0), "b": None})
    late, soon = (judge(Evidence(live=True, tp=2, run=run, host="a", hosts=("a", "b"))) for run in (old, young))

    assert (late.name, late.host, late.rank, late.confidence) == ("rank-never-joined", "b", 1, "high")
    assert "is on b: TP1 on b is not there" in late.summary and soon.confidence == "medium"
    assert any(one.text == "nothing of run 1201-100000-abcd is on b" for one in late.evidence)


def test_where_else_a_run_may_be() -> None:
    """On the hosts of its own record that were not asked; a host that was renamed since is not another one."""
    narrowed, renamed = whole({"a": a_part(0)}), whole({"rtx1": a_part(0), "rtx2": a_part(1)})

    assert narrowed and elsewhere(narrowed, ("a",)) == ("b",) and absent(narrowed) == ()
    assert renamed and elsewhere(renamed, ("rtx1", "rtx2")) == () and absent(renamed) == ()
    assert elsewhere(a_part(0), ("a",)) == elsewhere(a_part(0), ("rtx1",)) == ("b",)


def test_runs_of_several_hosts_are_put_together_by_id() -> None:
    """Newest first; a run on one host stays as it is."""
    old = replace(a_part(0), id="1201-090000-abcd", started=50.0)
    found = together({"a": [a_part(0), old], "b": [a_part(1)]})

    assert [(run.id, [part.phase for part in run.parts]) for run in found] == [
        ("1201-100000-abcd", ["running", "running"]),
        ("1201-090000-abcd", ["running", "absent"]),
    ]


def test_logs_of_several_hosts_are_one() -> None:
    """The first one's own milestones and lines; ranks' and errors of all, each error with its host."""
    head = summarize(
        b"[2026-12-01 10:00:00] server_args=ServerArgs(tp_size=2, nnodes=2)\n"
        b"[2026-12-01 10:00:01 TP0] Load weight begin.\n",
        tp=2,
    )
    other = summarize(
        b"[2026-12-01 10:00:00] server_args=ServerArgs(tp_size=2, nnodes=2)\n"
        b"[2026-12-01 10:00:02 TP1] Load weight begin.\n"
        b"[2026-12-01 10:00:03] INFO:     Uvicorn running on http://x\n"
        b"[2026-12-01 10:00:04 TP1] Scheduler hit an exception: x\n",
        tp=2,
    )
    both = joined_logs([head, other], ["a", "b"])

    assert both.lines == 2 and "http" not in both.reached
    assert set(both.reached["weights-begin"]) == {"TP0", "TP1"}
    assert both.cause and (both.cause.host, both.cause.rank, both.cause.line) == ("b", "TP1", 4)
    assert joined_logs([head]) is head
    assert [error.host for error in joined_logs([other], ["b"]).errors] == ["b"]


def planned(rank: int, tmp_path: Path, **deployed: Any) -> Plan:
    found = inventory(tmp_path, "nodes: [a, b, c]")
    server, hosts = found.servers["big"], found.hosts
    made = plan(server, hosts["abc"[rank]], Deployed(**{"sglang": "0.5.9", "patches": {}, **deployed}), captures=False)
    return on_node(made, shares(server.hosts, server.tp)[rank])


def test_each_node_gets_its_flags_and_all_share_a_hash(tmp_path: Path) -> None:
    """The ranks are spread evenly; where they meet is left open."""
    plans = joined([planned(rank, tmp_path) for rank in range(3)])

    assert [one.argv[-6:] for one in plans] == [
        ("--nnodes", "3", "--node-rank", str(rank), "--dist-init-addr", "{dist}") for rank in range(3)
    ]
    assert len({one.spec_hash for one in plans}) == 1
    assert [(one.node.first, one.node.ranks) for one in plans if one.node] == [(0, 2), (2, 2), (4, 2)]
    assert replace(plans[1], dist="h:1").request()["argv"][-1] == "h:1"


def test_code_that_differs_between_hosts_is_refused(tmp_path: Path) -> None:
    """Another identity of a patch; a patch that one lacks; another SGLang."""
    head = planned(0, tmp_path, patches={"hs-dump": "1111"})
    for other, said in (
        ({"patches": {"hs-dump": "2222"}}, "patch hs-dump is 2222 on b, and 1111 on a"),
        ({"patches": {}}, "patch hs-dump is unknown on b, and 1111 on a"),
        ({"patches": {"hs-dump": "1111"}, "sglang": "0.5.8"}, "SGLang is 0.5.8 on b, and 0.5.9 on a"),
    ):
        with pytest.raises(HsopsError) as error:
            joined([head, planned(1, tmp_path, **other)])
        assert error.value.message == said and error.value.host == "b"


@pytest.mark.parametrize(
    "server,where,said",
    [
        ("nodes: [a, b], tp: 2, args: {nnodes: 2}", "args.nnodes", "hsops fills it in"),
        ("nodes: [a, b], tp: 2, args: {node-rank: 0}", "args.node-rank", "hsops fills it in"),
        ("nodes: [a, b], tp: 2, args: {pp-size: 2}", "args.pp-size", "not over several hosts yet"),
        ("nodes: [a, b], tp: 2, args: {dist-init-addr: a}", "args.dist-init-addr", "'a' is not HOST:PORT"),
        ("nodes: [a, b], tp: 3", "tp", "3 ranks cannot be spread evenly over 2 hosts"),
    ],
)
def test_flags_that_contradict_nodes_are_faults(tmp_path: Path, server: str, where: str, said: str) -> None:
    """Of the server's own entry, before any host is asked to start something."""
    path = tmp_path / "inventory.yaml"
    path.write_text(f"{HOSTS}servers: {{big: {{model: /m, {server}}}}}\n")
    found = load(path)
    with pytest.raises(ConfigError) as error:
        plan(found.servers["big"], found.hosts["a"], Deployed("0.5.9", {}), captures=False)

    assert [(fault.where, said in fault.message) for fault in error.value.faults] == [(f"servers.big.{where}", True)]


def seen(host: str, *addresses: tuple[str, str], named: str = "10.0.0.1", boot: str = "1") -> Seen:
    return Seen(host, addresses, (named,), boot)


def test_where_nodes_meet_is_an_address_that_others_may_reach() -> None:
    """Loopback last, bridges of containers before it; an interface that the environment names first."""
    head = seen("a", ("lo", "127.0.0.1"), ("docker0", "172.17.0.1"), ("eth0", "10.0.0.1"), ("ib0", "10.1.0.1"))

    assert candidates(head, {}) == ["10.0.0.1", "10.1.0.1", "172.17.0.1", "127.0.0.1"]
    assert candidates(head, {"NCCL_SOCKET_IFNAME": "ib"})[0] == "10.1.0.1"
    assert candidates(head, {"GLOO_SOCKET_IFNAME": "lo"})[0] == "127.0.0.1"


def test_a_host_whose_name_leads_to_itself_is_told() -> None:
    """Only where the hosts are several machines, and nobody has said which interface gloo takes."""
    a = seen("a", ("eth0", "10.0.0.1"), boot="1")
    b = seen("b", ("lo", "127.0.0.1"), ("eno1", "10.0.0.2"), named="127.0.1.1", boot="2")

    assert [(one.host, way) for one, way in gloo_faults([a, b], {})] == [("b", "eno1")]
    assert not list(gloo_faults([a, b], {"GLOO_SOCKET_IFNAME": "eno1"}))
    assert not list(gloo_faults([replace(a, boot="2"), b], {}))
