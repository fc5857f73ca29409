"""inventory.yaml: every fault at once, each with its place."""

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsops.core.errors import ConfigError, UsageError
from hsops.core.inventory_file import find_server, find_servers, load, select_hosts

ROOT = Path(__file__).parents[2]
GOOD = """\
hosts:
  box: { ssh: root@gpu-box, python: /root/venv/bin/python }
  other: { ssh: local, python: /usr/bin/python3 }
groups:
  all: [box, other]
servers:
  kimi: { host: box, model: /models/Kimi-K2.5, tp: 8, port: 8000, nccl: pcie-p2p, patches: [hs-dump] }
  small: { host: other, model: /m, env: { A: "1" }, args: { trust-remote-code: true, max-total-tokens: 2048 } }
patches:
  hs-dump: { boundaries: [3, 31, 59], final: pre-norm }
default: kimi
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    return path


def faults(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return [str(fault).replace(f"{path}:", "") for fault in caught.value.faults]


def test_boundaries_are_held_as_dumps_have_them(tmp_path):
    """Ascending and once each, in whichever order they are written: a launch compares them with what is deployed."""
    inventory = load(write(tmp_path, GOOD.replace("[3, 31, 59]", "[59, 3, 31, 3]")))

    assert inventory.patches["hs-dump"].boundaries == (3, 31, 59)


def test_a_good_file_becomes_values(tmp_path):
    """Every section arrives with its names and defaults."""
    inventory = load(write(tmp_path, GOOD))

    assert inventory.hosts["box"].state_dir == "~/.hsops"
    assert inventory.servers["kimi"].tp == 8
    assert inventory.patches["hs-dump"].boundaries == (3, 31, 59)
    assert inventory.servers["small"].args == {"trust-remote-code": True, "max-total-tokens": 2048}


def test_all_faults_are_reported_with_line_and_column(tmp_path):
    """Unknown key, wrong type, unknown host and patch, bad default: one run shows them all."""
    path = write(
        tmp_path,
        "hosts:\n"
        "  box: { ssh: root@gpu-box, python: /p, pyton: /p }\n"
        "servers:\n"
        "  kimi:\n"
        "    host: bx\n"
        "    model: /m\n"
        "    tp: eight\n"
        "    patches: [hs-dmup]\n"
        "patches:\n"
        "  hs-dump: { boundaries: [] }\n"
        "default: kimmi\n",
    )

    found = faults(path)

    assert found == [
        "2:41: hosts.box.pyton: unknown key; did you mean 'python'?",
        "5:11: servers.kimi.host: no host 'bx'; did you mean 'box'?",
        "7:9: servers.kimi.tp: expected an integer, got 'eight'",
        "8:15: servers.kimi.patches[0]: no patch 'hs-dmup'; did you mean 'hs-dump'?",
        "10:26: patches.hs-dump.boundaries: needs at least 1 entry",
        "11:10: default: no server 'kimmi'; did you mean 'kimi'?",
    ]


@pytest.mark.parametrize(
    "text,expected",
    [
        ("hosts: [", "1:9: YAML syntax"),
        ("hosts:\n\tbox: 1\n", "2:1: YAML syntax"),
        ("hosts: {}\nhosts: {}\n", "2:1: hosts: given twice; first at line 1"),
        ("1: x\n", "1:1: a key must be text, got 1; quote it"),
        ("- a\n", "1:1: expected a mapping"),
        ("just text\n", "1:1: expected a mapping"),
        ("hosts: 7\n", "1:8: hosts: expected a mapping, got 7"),
        ("hosts:\n  box:\n", "2:7: hosts.box: expected a mapping, got None"),
        ("hosts:\n  box: {ssh: x}\n", "2:3: hosts.box: 'python' is missing"),
        (
            "hosts:\n  box: {ssh: x, python: bin/python}\n",
            "2:25: hosts.box.python: 'bin/python' is not an absolute path",
        ),
        ("hosts:\n  'a b': {ssh: x, python: /p}\n", "'a b' is not a name"),
        ("servers:\n  s: {host: h, model: m, port: 70000}\n", "2:32: servers.s.port"),
        ("servers:\n  s: {host: h, model: m}\n", "2:13: servers.s.host: no host 'h'"),
        ("servers:\n  s: {host: h, model: m, env: {A: 1}}\n", "2:35: servers.s.env.A: expected text, got 1"),
        ("servers:\n  s: {host: h, model: m, tp: true}\n", "2:30: servers.s.tp: expected an integer, got True"),
        (
            "servers:\n  s: {host: h, model: m, patches: [a, b]}\n",
            "2:39: servers.s.patches[1]: one server captures once",
        ),
        ("groups:\n  g: [nobody]\n", "2:7: groups.g[0]: no host 'nobody'"),
        ("defaults: {hosts: {}}\n", "1:12: defaults.hosts: unknown key; did you mean 'host'?"),
        ("hosts: &a\n  x: *a\n", "an alias to its own parent"),
        ("when: 2026-13-45\n", "1:7: when"),
    ],
)
def test_a_fault_names_its_place(tmp_path, text, expected):
    """Each kind of fault says where it is and what was expected."""
    path = write(tmp_path, text)

    found = faults(path)

    assert any(expected in fault for fault in found), found


@pytest.mark.parametrize(
    "via,expected",
    [
        ("[docker, exec, -it, kimi]", "asks for a terminal, which hsops has none of"),
        ("[/usr/bin/podman, exec, -i, --tty, kimi]", "asks for a terminal"),
        ("[docker, exec, kimi]", "lets no input through: add '-i'"),
        ("[kubectl, exec, -i, kimi]", "must end with '--'"),
        ("[chroot, '']", "an empty word"),
        ("docker exec -i kimi", "expected a list, got 'docker exec -i kimi'"),
        ("[docker, exec, -i, 7]", "expected text, got 7"),
    ],
)
def test_a_prefix_that_cannot_work_is_told_before_any_host_is_asked(tmp_path, via, expected):
    """One fault, at its place."""
    found = faults(write(tmp_path, f"hosts:\n  box: {{ ssh: x, python: /p, via: {via} }}\n"))

    assert len(found) == 1 and found[0].startswith("2:") and "hosts.box.via" in found[0] and expected in found[0], found


def test_a_prefix_may_ask_for_anything_else(tmp_path):
    """Options of the container's own program, and programs that are not known here."""
    for via in (
        "[]",
        "[docker, exec, -i, -u, sglang, kimi]",
        "[sudo, -n, docker, exec, -i, k]",
        "[kubectl, exec, -i, p, --]",
    ):
        load(write(tmp_path, f"hosts:\n  box: {{ ssh: x, python: /p, via: {via} }}\n"))


@pytest.mark.parametrize("given,expected", [("[-1]", "greater than or equal to 0"), ("[x]", "expected an integer")])
def test_an_entry_at_fault_makes_no_list_too_short(tmp_path, given, expected):
    """One fault is told once, at the entry that has it."""
    found = faults(write(tmp_path, f"patches:\n  hs-dump: {{ boundaries: {given} }}\n"))

    assert len(found) == 1 and found[0].startswith("2:27: patches.hs-dump.boundaries[0]: ") and expected in found[0]


def test_a_missing_file_says_what_to_do(tmp_path):
    """No inventory: the error names the file and the option."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "inventory.yaml")

    assert "no inventory here" in caught.value.message
    assert "--inventory" in caught.value.fix


def test_a_file_that_is_no_text_is_refused(tmp_path):
    """Binary input is named as such, not a traceback."""
    path = tmp_path / "inventory.yaml"
    path.write_bytes(b"\xff\xfe\x00")

    assert "cannot be read" in faults(path)[0]


def test_defaults_fill_hosts_and_servers(tmp_path):
    """What an entry says wins over defaults."""
    text = (
        "defaults:\n  host: {python: /d/python, dumps: /d/dumps}\n  server: {tp: 4}\n"
        "hosts:\n  a: {ssh: a}\n  b: {ssh: b, python: /b/python}\n"
        "servers:\n  s: {host: a, model: m}\n  t: {host: b, model: m, tp: 2}\n"
    )

    inventory = load(write(tmp_path, text))

    assert [h.python for h in inventory.hosts.values()] == ["/d/python", "/b/python"]
    assert [s.tp for s in inventory.servers.values()] == [4, 2]


def test_selection_knows_hosts_groups_and_the_default(tmp_path):
    """--host and --group select, in the order given; without them the default server's host."""
    inventory = load(write(tmp_path, GOOD))

    assert [h.name for h in select_hosts(inventory, (), ())] == ["box"]
    assert [h.name for h in select_hosts(inventory, (), ("all",))] == ["box", "other"]
    assert [h.name for h in select_hosts(inventory, ("other",), ("all",))] == ["other", "box"]
    with pytest.raises(UsageError, match="did you mean 'other'"):
        select_hosts(inventory, ("othr",), ())
    assert find_server(inventory, None).name == "kimi"
    with pytest.raises(UsageError, match="did you mean 'small'"):
        find_server(inventory, "smal")


def test_a_server_must_be_on_a_host_that_was_named(tmp_path):
    """--host is never passed over: `hsops --host other stop` must not stop the default server on its own host."""
    text = """
hosts:
  box: {ssh: local, python: /p}
  other: {ssh: local, python: /p}
servers:
  kimi: {host: box, model: /m}
  small: {host: other, model: /m}
default: kimi
"""
    inventory = load(write(tmp_path, text))

    assert find_server(inventory, None, ["other"]).name == "small"
    assert find_server(inventory, None, ["box", "other"]).name == "kimi"
    assert find_server(inventory, "small", ["other"]).name == "small"
    with pytest.raises(UsageError, match="server kimi is on box, not on other"):
        find_server(inventory, "kimi", ["other"])


def test_several_servers_are_named_or_those_of_the_hosts_that_are_wanted(tmp_path):
    """A,B and repeated, each once; without names every one of the hosts that captures; without hosts the default."""
    text = GOOD.replace("patches:\n", "  second: { host: box, model: /m, patches: [hs-dump] }\npatches:\n", 1)
    inventory = load(write(tmp_path, text))

    def names(given, hosts=()):
        return [spec.name for spec in find_servers(inventory, given, hosts, lambda spec: bool(spec.patches))]

    assert names(["small,kimi", "kimi", "second"]) == ["small", "kimi", "second"]
    assert names([], ["other", "box"]) == ["kimi", "second"]
    assert names([], ["other"]) == ["small"]  # what it lacks is told where it matters
    assert names([]) == ["kimi"]
    with pytest.raises(UsageError, match="server small is on other, not on box"):
        names(["kimi,small"], ["box"])
    with pytest.raises(UsageError, match="did you mean 'kimi'"):
        names(["kim,small"])


@given(st.text(max_size=200))
def test_no_text_makes_a_traceback(text):
    """Whatever the file holds, the answer is an inventory or a ConfigError."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inventory.yaml"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        with contextlib.suppress(ConfigError):  # anything else fails the test
            load(path)


def uncommented(text: str) -> str:
    """As the file itself says: take away the `#` in column 1, where no space or at least two follow it."""
    return re.sub(r"^#(?=\S|  )", "", text, flags=re.MULTILINE)


def test_the_repositorys_inventory_is_right_as_it_is_and_uncommented(tmp_path):
    """It is the manual: the lab is the default, and the commented hosts, group, servers and patch are good too."""
    text = (ROOT / "inventory.yaml").read_text()

    shipped, whole = load(ROOT / "inventory.yaml"), load(write(tmp_path, uncommented(text)))

    assert (list(shipped.hosts), find_server(shipped, None).name) == (["lab"], "tiny")
    kimi = whole.servers["kimi-k2.5"]
    assert (kimi.host, kimi.tp, kimi.nccl, kimi.patches) == ("rtx8", 8, "pcie-p2p", ("eagle3",))
    cluster = whole.servers["kimi-cluster"]
    assert (cluster.host, cluster.executor, cluster.slurm.gres) == ("login", "slurm", "gpu:8")
    assert whole.groups == {"blackwell": ("rtx8", "rtx9")}
    assert whole.servers["deepseek-v3"].hosts == ("rtx8", "rtx9")
    assert whole.patches["eagle3"].boundaries == (3, 31, 59)


def test_the_inventory_in_the_readme_is_right(tmp_path):
    """What a user copies first."""
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

    assert find_server(load(write(tmp_path, block)), None).name == "kimi-k2.5"


@pytest.mark.parametrize(
    "text,expected",
    [
        (GOOD.replace("root@gpu-box", '"a\\0b"'), "2:15: hosts.box.ssh: the text has a NUL"),
        (GOOD.replace("root@gpu-box", '"a\\nb"'), "2:15: hosts.box.ssh: 'a\\nb' has the control character"),
        (GOOD.replace("/usr/bin/python3", '"/a\\nb"'), "3:32: hosts.other.python: '/a\\nb' has the control character"),
        (GOOD.replace("/models/Kimi-K2.5", '""'), "7:29: servers.kimi.model: '' is neither a path"),
        (GOOD.replace("/models/Kimi-K2.5", "--help"), "7:29: servers.kimi.model: '--help' is neither a path"),
        (GOOD.replace('A: "1"', '"A=B": "1"'), "servers.small.env.A=B: 'A=B' is not the name of an environment"),
        (GOOD.replace('A: "1"', '"": "1"'), "'' is not the name of an environment"),
        (GOOD.replace('A: "1"', 'A: "\\ud800"'), "8:46: servers.small.env.A: the text has a NUL or half a character"),
        (GOOD.replace("trust-remote-code: true", '"a b": 1'), "'a b' is not a flag"),
        (GOOD.replace("tp: 8", f"tp: 0x{'f' * 6000}"), "7:52: servers.kimi.tp: the number is too large"),
        (GOOD.replace("[3, 31, 59]", f"[{10**30}]"), "the number is too large"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
    ids=lambda value: None if len(value) > 60 else value[:40],
)
def test_what_no_command_line_can_take_is_a_fault_with_its_place(tmp_path, text, expected):
    """Found here, and not by execve, getaddrinfo or YAML's own recursion in the middle of something."""
    found = faults(write(tmp_path, text))

    assert any(expected in fault for fault in found), found


def test_aliases_of_aliases_are_refused_at_once(tmp_path):
    """Nine lines that stand for billions of values."""
    levels = [f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]" for i in range(1, 10)]

    assert "more than 100,000 values" in faults(write(tmp_path, "\n".join(["k0: &k0 [x]", *levels])))[0]


@pytest.mark.parametrize("value", ['!!int ""', '!!float "_"', '!!bool "x"', '!!timestamp "x"'])
def test_a_value_that_is_not_what_its_tag_says_has_a_place(tmp_path, value):
    """PyYAML ends with an IndexError, a KeyError or an AttributeError there."""
    (fault,) = faults(write(tmp_path, f"hosts:\n  box: {{ ssh: box, python: /p, keepalive: {value} }}\n"))

    tag, text = value.replace('"', "'").split()
    assert fault == f"2:43: hosts.box.keepalive: {text} is not what its tag {tag} says"
