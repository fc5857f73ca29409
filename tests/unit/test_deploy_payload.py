"""What hs-dump puts on a host."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsops.core.inventory import HsDumpPatch
from hsops.deploy import payload
from hsops.deploy.payload import has_stanza, with_stanza, without_stanza
from hsops.payload.hsops_hs_dump import settings


def test_the_identity_is_of_the_bytes_and_the_options() -> None:
    """Equal options in another order are equal; other boundaries or another final state are not."""
    first = payload.build(HsDumpPatch(name="a", boundaries=(3, 31, 59)))

    same = payload.build(HsDumpPatch(name="b", boundaries=(59, 3, 31, 3)))
    others = [
        payload.build(HsDumpPatch(name="a", boundaries=(3, 31))),
        payload.build(HsDumpPatch(name="a", boundaries=(3, 31, 59), final="none")),
    ]

    assert first.identity == same.identity and len(first.identity) == 12
    assert first.identity not in {other.identity for other in others}


def test_the_configuration_says_what_the_payload_reads() -> None:
    """config.json comes back as the payload's settings."""
    made = payload.build(HsDumpPatch(name="a", boundaries=(31, 3)))

    text = made.files["hsops_hs_dump/config.json"].decode()
    read = settings.load({"SGLANG_HS_DUMP_DIR": "/d", "SGLANG_HS_RUN": "r"}, text)

    assert json.loads(text)["identity"] == made.identity
    assert (read.boundaries, read.final, read.slots, read.dump_dir, read.run) == ((3, 31), "pre-norm", 3, "/d", "r")


def test_the_payload_parses_as_the_oldest_python_that_sglang_runs_on() -> None:
    """3.10, and no import of hsops."""
    for name, source in payload.sources().items():
        tree = ast.parse(source, name, feature_version=(3, 10))
        imported = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and not n.level]
        imported += [alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names]
        assert not [module for module in imported if module.split(".")[0] == "hsops"], name


@given(st.binary(max_size=200))
def test_taking_the_stanza_away_gives_the_very_bytes_back(module: bytes) -> None:
    """Whatever the module ends with: a newline, none, or carriage returns."""
    assert without_stanza(with_stanza(module)) == module
    assert has_stanza(with_stanza(module)) and not has_stanza(module)


@pytest.mark.parametrize("module", [b"x = 1\n", b"x = 1", b"", b"x = 1\r\n"])
def test_the_stanza_is_inert_without_its_variable(module: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executed in a process that has no payload and no variable, it does nothing and raises nothing."""
    monkeypatch.delenv("SGLANG_HS_DUMP_DIR", raising=False)
    namespace: dict[str, object] = {}

    exec(compile(with_stanza(module), "module.py", "exec"), namespace)

    assert {name for name in namespace if not name.startswith("__")} <= {"x", "_hsops_os"}


def test_the_stanza_reports_a_payload_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception would be swallowed by SGLang, so it becomes a line in the log."""
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", "/nowhere")

    exec(compile(with_stanza(b""), "module.py", "exec"), {})

    assert "NOT capturing" in capsys.readouterr().err
