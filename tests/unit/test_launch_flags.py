"""SGLang's flags are read from its code and a server's ``args`` are held against them."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import options
from hsops.core.errors import AgentError, ConfigError
from hsops.core.inventory import HostSpec, ServerSpec
from hsops.launch.flags import Parser, parse_options, read
from hsops.launch.plan import Deployed, plan
from hsops.launch.start import parser as parser_of
from hsops.remote.agent import Agent
from hsops.remote.local import LocalHost

SPELT_OUT = """
    LOAD_FORMATS = ["auto", "dummy"]
    BACKENDS = ["triton", "flashinfer"]


    def add_backends(more):
        BACKENDS.extend(more)


    class ServerArgs:
        @staticmethod
        def add_cli_args(parser):
            computed = list(Elsewhere.keys())
            parser.add_argument("--model-path", "--model", type=str, required=True)
            parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=1)
            parser.add_argument("--pipeline-parallel-size", "--pp-size", type=int)
            parser.add_argument("--host", type=str)
            parser.add_argument("--port", type=int)
            parser.add_argument("--skip-server-warmup", action="store_true")
            parser.add_argument("--mem-fraction-static", type=float)
            parser.add_argument("--load-format", type=str, choices=LOAD_FORMATS)
            parser.add_argument("--attention-backend", type=str, choices=BACKENDS + ["aiter"])
            parser.add_argument("--reasoning-parser", type=str, choices=computed)
            parser.add_argument("--cuda-graph-bs", type=int, nargs="+")
            parser.add_argument("--lora-paths", type=str, nargs="*", action=LoRAPathAction)
            parser.add_argument("--bucket", nargs="?", const="1", type=parse_bucket)
            parser.add_argument("--enable-mixed-chunk", action="store_true")
            parser.add_argument("--crash-dump-folder", type=str)
            parser.add_argument("--old-moe", action=DeprecatedAction, help="NOTE: use --moe instead.")
            parser.add_argument("--gone", action=DeprecatedAction, error_message="--gone is gone; use --moe.")
            parser.add_argument("--fusion", action="store_true", help="(Deprecated: use --other) Fuse.")
"""
OF_FIELDS = """
    class Model(msgspec.Struct):
        model_path: A[str, Arg(help="Path", aliases=["--model"])]
        tp_size: A[int, Arg(help="Ranks", cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
        pp_size: A[int, Arg(help="Stages", cli_name="--pipeline-parallel-size", aliases=["--pp-size"])] = 1
        host: A[str, "The host."] = "127.0.0.1"
        port: A[int, "The port."] = 30000
        skip_server_warmup: A[bool, "No warm-up."] = False
        mem_fraction_static: A[Optional[float], Arg(help="Fraction", resolvable=True)] = None
        load_format: A[Literal["auto", "dummy"], "Format."] = "auto"
        attention_backend: A[str | None, Arg(help="Kernels", choices=ATTENTION + ["aiter"])] = None
        reasoning_parser: A[Optional[str], Arg(no_cli=True)] = None
        cuda_graph_bs: A[Optional[List[int]], "Sizes."] = None
        lora_paths: A[Optional[List[str]], Arg(help="Paths", nargs="*", action=LoRAPathAction)] = None
        bucket: A[Optional[List[str]], Arg(help="JSON", type_parser=json_list_type, nargs="?")] = None
        enable_mixed_chunk: A[bool, Arg(help="Mix")] = False
        crash_dump_folder: A[Optional[Union[List[str], str]], "Where."] = None
        sleep_on_idle: A[bool, Arg(help="Sleep", action=argparse.BooleanOptionalAction)] = False
        shown: Derived = Derived(doc="not an option")
"""
CHOICES = 'ATTENTION = ["triton", "flashinfer"]\nadd_attention = ATTENTION.extend\n'


def written(folder: Path, main: str, fields: str = "", choices: str = "") -> list[dict[str, Any]]:
    """What the agent reads of an SGLang with these files."""
    (folder / "arg_groups/fields").mkdir(parents=True)
    (folder / "server_args.py").write_text(textwrap.dedent(main))
    (folder / "arg_groups/fields/model.py").write_text(textwrap.dedent(fields))
    (folder / "arg_groups/choices.py").write_text(choices)
    return options.read(str(folder))


@pytest.fixture(params=["0.5.9", "0.5.23"])
def parser(request: pytest.FixtureRequest, tmp_path: Path) -> Parser:
    """The same command line, declared in the way of either release."""
    if request.param == "0.5.9":
        return parse_options(written(tmp_path, SPELT_OUT), "0.5.9")
    old = [line for line in SPELT_OUT.splitlines() if any(word in line for word in ("--old", "--gone", "--fusion"))]
    parse = 'parser.add_argument("--reasoning-parser", type=str, choices=computed())'
    main = "\n".join([parse, *(line.strip() for line in old)])
    return parse_options(written(tmp_path, main, OF_FIELDS, CHOICES), "0.5.23")


@pytest.mark.parametrize(
    "args,words",
    [
        ({"enforce-eager": True}, "has no flag --enforce-eager"),
        ({"mem-fraction-sttic": 0.8}, "has no flag --mem-fraction-sttic; did you mean --mem-fraction-static"),
        ({"m": "x"}, "--m could be --model-path, --model, --mem-fraction-static; write one out"),
        ({"cuda-graph-bs": "eight"}, "expected a whole number, got 'eight'"),
        ({"cuda-graph-bs": [1, 2.5]}, "expected a whole number, got '2.5'"),
        ({"cuda-graph-bs": True}, "it needs a value"),
        ({"cuda-graph-bs": []}, "it needs a value"),
        ({"mem_fraction_static": "most"}, "expected a number, got 'most'"),
        ({"mem-fraction-static": True}, "it needs a value"),
        ({"load-format": "dumy"}, "'dumy' is none of auto, dummy; did you mean dummy?"),
        ({"load-format": "other"}, "'other' is none of auto, dummy"),
        ({"attention-backend": "flashinfre"}, "did you mean flashinfer?"),
        ({"attention-backend": ["triton", "aiter"]}, "it takes one value, got 2"),
        ({"skip-server-warmup": "yes"}, "it takes no value, got 'yes'; say true"),
        ({"crash-dump-folder": "-tmp"}, "begins with a dash"),
        ({"gone": True}, "SGLang refuses it: --gone is gone; use --moe."),
        ({"tp-size": 2, "tensor-parallel-size": 4}, "the same flag as tp-size; keep one"),
    ],
)
def test_what_the_parser_would_refuse(parser: Parser, args: dict[str, Any], words: str) -> None:
    """One sentence that says what would be right, at the name that is wrong."""
    found = read(args, parser)

    assert [name for name, _ in found.faults] == [list(args)[-1]]
    assert words in found.faults[0][1], found.faults


@pytest.mark.parametrize(
    "args",
    [
        {"model": "/m", "tp-size": 2, "--port": 1, "mem_fraction_static": 1, "host": "::1", "load-format": "auto"},
        {"cuda-graph-bs": [1, 2], "lora-paths": ["a=b", "c"], "enable-mixed-chunk": True, "bucket": ["1"]},
        {"lora-paths": True, "bucket": True, "no-such-flag": False, "reasoning-parser": "who-knows"},
        {"tp-size": 2, "tensor-parallel-size": 2, "attention-backend": "aiter", "cuda-graph-bs": -1},
    ],
)
def test_what_is_fine(parser: Parser, args: dict[str, Any]) -> None:
    """Synonyms, underscores, dashes or none, lists, optional values; what only SGLang itself can tell."""
    found = read(args, parser)

    assert (found.faults, found.notes, found.full) == ((), (), {})


@pytest.mark.parametrize(
    "args,words",
    [
        ({"skip-server": True}, "--skip-server is short for --skip-server-warmup"),
        ({"old-moe": True}, "--old-moe is deprecated in SGLang"),
        ({"fusion": True}, "(Deprecated: use --other)"),
        ({"attention-backend": "of-a-plugin"}, "SGLang itself has triton, flashinfer, aiter; a plugin may add more"),
    ],
)
def test_what_works_and_is_said(parser: Parser, args: dict[str, Any], words: str) -> None:
    """It does not stop a launch."""
    found = read(args, parser)

    assert found.faults == () and len(found.notes) == 1 and words in found.notes[0], found


def test_a_switch_with_two_names(tmp_path: Path) -> None:
    """``--no-...`` of argparse's BooleanOptionalAction."""
    parser = parse_options(written(tmp_path, "", OF_FIELDS, CHOICES), "0.5.23")

    assert read({"no-sleep-on-idle": True}, parser).faults == ()
    assert "takes no value" in read({"sleep-on-idle": "no"}, parser).faults[0][1]


def test_an_sglang_that_cannot_be_read_is_not_judged(tmp_path: Path) -> None:
    """Neither is one whose command line is declared in a way that nobody has seen yet."""
    unknown = parse_options(written(tmp_path, "def add_cli_args(parser): register(parser)\n"), "0.9.0")

    assert options.read(str(tmp_path / "nowhere")) == []
    assert read({"anything": "goes"}, unknown).faults == ()


@pytest.mark.parametrize("first,second", [("list(X)", "[]"), ("sorted(Y)", "X + ['b']"), ("X", "[]")])
def test_a_list_that_is_made_of_itself_has_no_choices(tmp_path: Path, first: str, second: str) -> None:
    """Nobody follows it round and round. One that is named twice is no circle."""
    lists = f"X = {first}\nY = {second}\nZ = ['a']\nW = Z + Z\n"
    main = f"{lists}p.add_argument('--circle', choices=X)\np.add_argument('--twice', choices=W)\n"
    flags = parse_options(written(tmp_path, main), "0.9.0")

    assert read({"circle": "anything"}, flags).faults == ()
    assert flags.option("--twice").choices == ("a", "a")


def test_a_command_line_that_the_agent_fails_to_read_is_not_judged() -> None:
    """It is said, and the launch goes on: SGLang judges its flags itself."""

    class Failing(Agent):
        def call(self, *_: object, **__: object) -> dict[str, Any]:
            raise AgentError("the agent failed in args-look: RecursionError", code="bug", detail={})

    flags = parser_of(Failing(LocalHost("box"), python="/venv/bin/python", state_dir="/s"), "0.9.0")
    found = read({"anything": "goes"}, flags)

    assert found.faults == ()
    assert found.notes == ("the flags in args are not judged: the agent failed in args-look: RecursionError",)


def test_a_plan_has_every_fault_in_its_place(parser: Parser) -> None:
    """A short form is taken for what argparse takes it for, by the checks of fields and patch too."""
    host = HostSpec(name="box", ssh="local", python="/venv/bin/python")
    args = {"por": 1, "enable-mixed": True, "enforce-eager": True, "tp": 2, "skip-server": True}
    server = ServerSpec(name="s", host="box", model="/m", tp=2, port=8000, args=args)

    with pytest.raises(ConfigError) as wrong:
        plan(server, host, Deployed("0.5.9", {}), captures=True, parser=parser)
    fine = plan(
        server.model_copy(update={"args": {"tp": 2, "skip-server": True}}),
        host,
        Deployed("0.5.9", {}),
        captures=False,
        parser=parser,
    )

    told = {fault.where.removeprefix("servers.s.args."): fault.message for fault in wrong.value.faults}
    assert "contradicts port" in told["por"] and "hs-dump" in told["enable-mixed"]
    assert "has no flag" in told["enforce-eager"] and len(told) == 3
    assert fine.argv[-1] == "--skip-server-warmup" and fine.argv.count("--tp-size") == 1
