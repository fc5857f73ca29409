"""export: every value where its trainer expects it, refusals that say how to get what is missing, reruns."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hsops.core.dumps import MANIFEST, Sample, token_bytes
from hsops.core.errors import BadDataError, ConfigError, LockedError, SpaceError, UsageError
from hsops.core.events import ignore
from hsops.core.prompts import Prompt
from hsops.export import making, place
from hsops.export.arrow_file import Line, write_stream
from hsops.export.export import CONFIG, Exported, export
from hsops.export.formats import Format, SpecForge, Speculators
from hsops.export.making import ABOUT, Job
from hsops.export.rows import masked
from hsops.export.target import JOURNAL, open_target
from hsops.export.torch_file import Entry, write_torch_file
from hsops.render.export import lines
from tests.dump_maker import add_line, fail, make
from tests.torch_reader import read_torch_file

H = 8
LENGTHS = {"a": 5, "b": 3, "c": 7}


def dumps(folder: Path, **how: object) -> dict[str, Sample]:
    """Three dumps of three boundaries, with both final states."""
    made: dict[str, object] = {"boundaries": (2, 4, 6), "final": "both", "dtype": "F32", "hidden_size": H, **how}
    return {name: make(folder, name, range(10, 10 + n), **made) for name, n in LENGTHS.items()}  # type: ignore[arg-type]


def prompts(*names: str) -> tuple[Prompt, ...]:
    """With masks that leave out the first token."""
    return tuple(
        Prompt(name, line, token_bytes(range(10, 10 + LENGTHS[name])), mask=b"\0" + b"\1" * (LENGTHS[name] - 1))
        for line, name in enumerate(names, 1)
    )


def run(tmp_path: Path, kind: Format, read: tuple[Prompt, ...] | None = None, **how: object) -> Exported:
    """Export without showing progress."""
    return export(Job(tmp_path / "dumps", tmp_path / "to", read, **how), kind, ignore)  # type: ignore[arg-type]


def files(folder: Path) -> set[str]:
    """All below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def touched(folder: Path) -> dict[str, int]:
    """When each file was written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("final", ["both", "post-norm"])
def test_specforge_gets_every_value_in_its_place(tmp_path: Path, final: str) -> None:
    """aux [1, T, 3H] in ascending order of layers, the state after the norm, ids and mask; in the prompts' order."""
    dumps(tmp_path / "dumps", final=final)

    done = run(tmp_path, SpecForge(), prompts("c", "a"))

    assert (done.complete, done.samples, done.tokens, done.made) == (True, 2, 12, {"written": 2})
    for number, name in enumerate("ca"):
        got = read_torch_file(tmp_path / f"to/rows_0-2000/data_{number}.ckpt")
        held = load_file(tmp_path / f"dumps/{name}.safetensors")
        count = LENGTHS[name]
        assert list(got) == ["input_ids", "loss_mask", "hidden_state", "aux_hidden_state"]
        assert got["input_ids"].tolist() == held["token_ids"].tolist()
        assert got["loss_mask"].tolist() == [0] + [1] * (count - 1)
        assert got["hidden_state"].shape == (1, count, H)
        assert np.array_equal(got["hidden_state"][0], held["last_hidden_states"])
        assert got["aux_hidden_state"].shape == (1, count, 3 * H)
        for slot in range(3):
            assert np.array_equal(
                got["aux_hidden_state"][0, :, slot * H : (slot + 1) * H], held["hidden_states"][:, slot]
            )


@pytest.mark.parametrize("dtype, kind", [("BF16", "<u2"), ("F16", "<f2")])
def test_specforge_keeps_the_bits_of_narrow_floats(tmp_path: Path, dtype: str, kind: str) -> None:
    """What the server computed, in its own dtype."""
    sample = dumps(tmp_path / "dumps", dtype=dtype)["a"]

    run(tmp_path, SpecForge())

    got = read_torch_file(tmp_path / "to/rows_0-2000/data_0.ckpt")
    data = (tmp_path / "dumps" / sample.file).read_bytes()
    assert got["aux_hidden_state"].dtype == kind
    row = 4 * H * 2
    begin = 8 + int.from_bytes(data[:8], "little")
    assert got["aux_hidden_state"][0, 1].tobytes() == data[begin + row : begin + row + 3 * H * 2]


def test_specforge_groups_its_files(tmp_path: Path) -> None:
    """Two thousand a folder, as its own script has them."""
    row = making.rows({"a": dumps(tmp_path)["a"]}, None, (), gaps=True)[0]

    assert SpecForge().file(row) == "rows_0-2000/data_0.ckpt"
    assert SpecForge().file(making.Row(4001, row.sample, None, b"")) == "rows_4000-6000/data_4001.ckpt"


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("final", ["both", "pre-norm"])
def test_speculators_gets_the_dumps_themselves(tmp_path: Path, final: str, copy: bool) -> None:
    """By link where nothing must be shared; the row is the number in the name."""
    dumps(tmp_path / "dumps", final=final)

    done = run(tmp_path, Speculators(copy=copy), prompts("b", "c"))

    assert (done.complete, sum(done.made.values())) == (True, 2)
    assert {f"hidden_states/hs_{i}.safetensors" for i in (0, 1)} | {
        "data-00000-of-00001.arrow", "dataset_info.json", "state.json", ABOUT, JOURNAL
    } == files(tmp_path / "to")  # fmt: skip
    for number, name in enumerate("bc"):
        source, there = tmp_path / f"dumps/{name}.safetensors", tmp_path / f"to/hidden_states/hs_{number}.safetensors"
        assert there.read_bytes() == source.read_bytes()
        assert there.samefile(source) == (done.made == {place.LINK: 2})
        assert not (copy and there.samefile(source))


def test_the_columns_are_those_that_pyarrow_read_back() -> None:
    """`make trainers` reads them with datasets; this holds the bytes to what was read there."""
    lines_ = [Line(np.arange(n, dtype=np.int32), np.arange(n, dtype=np.int64) % 2) for n in range(1, 1502)]
    made = BytesIO()

    write_stream(made, lines_)

    assert hashlib.sha256(made.getvalue()).hexdigest() == COLUMNS


COLUMNS = "e14f4fbce7f7cbebe2d97ae1326ca2c2721785fe067760449a41458ce45cae9f"


@pytest.mark.parametrize(
    "kind, how, words",
    [
        (SpecForge(), {"final": "pre-norm"}, ("after the last norm", "final: both")),
        (SpecForge(), {"final": "none"}, ("after the last norm", "final: both")),
        (SpecForge(), {"boundaries": (2, 4)}, ("exactly 3", "boundaries")),
        (Speculators(copy=False), {"final": "post-norm"}, ("before the last norm", "final: both")),
        (Speculators(copy=False), {"final": "none"}, ("before the last norm", "final: both")),
    ],
)
def test_what_was_not_captured_is_refused_with_the_way_to_it(
    tmp_path: Path, kind: Format, how: dict[str, object], words: tuple[str, str]
) -> None:
    """The wrong norm or number of layers trains without an error. Nothing is made."""
    dumps(tmp_path / "dumps", **how)

    with pytest.raises(BadDataError) as caught:
        run(tmp_path, kind)

    assert words[0] in caught.value.message
    assert words[1] in caught.value.fix
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("how", [{"boundaries": (2, 4, 5)}, {"dtype": "BF16"}, {"hidden_size": 16}])
def test_dumps_that_are_not_alike_are_refused(tmp_path: Path, how: dict[str, object]) -> None:
    """Both kinds are named by a file."""
    dumps(tmp_path / "dumps")
    make(tmp_path / "dumps", "d", [1, 2], **{"boundaries": (2, 4, 6), "final": "both", "hidden_size": H, **how})  # type: ignore[arg-type]

    with pytest.raises(BadDataError, match=r"a\.safetensors has .* and d\.safetensors has"):
        run(tmp_path, SpecForge())


def nan(folder: Path) -> str:
    """A NaN that the manifest's checksum covers: the reader of speculators passes it."""
    states = np.ones((LENGTHS["b"], 4, H), np.float32)
    states[1, 2, 3] = np.nan
    make(folder, "b", range(10, 13), boundaries=(2, 4, 6), final="both", hidden_size=H, states=states)
    return "nan"


def a_row_short(folder: Path) -> str:
    """One row less than the prompt has tokens, and a manifest that agrees with the file."""
    make(folder, "b", range(10, 12), boundaries=(2, 4, 6), final="both", hidden_size=H)
    return "token-ids"


def flipped(folder: Path) -> str:
    """A bit."""
    data = bytearray((folder / "b.safetensors").read_bytes())
    data[-9] ^= 1
    (folder / "b.safetensors").write_bytes(data)
    return "checksum"


def gone(folder: Path) -> str:
    """A lost file."""
    (folder / "b.safetensors").unlink()
    return "missing"


def failed(folder: Path) -> str:
    """It has no dump: the manifest is another one."""
    kept = [line for line in (folder / MANIFEST).read_text().splitlines() if '"id": "b"' not in line]
    (folder / MANIFEST).write_text("".join(line + "\n" for line in kept))
    (folder / "b.safetensors").unlink()
    fail(folder, "b", "a row was lost")
    return "no-dump"


FAULTS = [nan, a_row_short, flipped, gone, failed]


@pytest.mark.parametrize("damage", FAULTS)
@pytest.mark.parametrize("kind", [SpecForge(), Speculators(copy=False)])
def test_a_faulty_dump_makes_no_data_set(tmp_path: Path, kind: Format, damage: Callable[[Path], str]) -> None:
    """It is named; the others are there for the next run, which adds what is missing and nothing else."""
    dumps(tmp_path / "dumps")
    good = (tmp_path / "dumps/b.safetensors").read_bytes(), (tmp_path / "dumps" / MANIFEST).read_bytes()
    code = damage(tmp_path / "dumps")
    read = prompts("a", "b", "c")

    first = run(tmp_path, kind, read)
    before = files(tmp_path / "to")
    (tmp_path / "dumps/b.safetensors").unlink(missing_ok=True)
    (tmp_path / "dumps/b.safetensors").write_bytes(good[0])
    (tmp_path / "dumps" / MANIFEST).write_bytes(good[1])
    second = run(tmp_path, kind, read)

    assert not first.complete
    assert {(f.file, f.code) for f in first.findings} - {("b.safetensors", "duplicate")} == {("b.safetensors", code)}
    assert not before & {ABOUT, "state.json"}
    assert (second.complete, second.samples) == (True, 3)
    assert sum(second.made.values()) == 1 + (code == "no-dump" and isinstance(kind, Speculators))


@pytest.mark.parametrize("damage", FAULTS)
def test_partial_leaves_the_faulty_out(tmp_path: Path, damage: Callable[[Path], str]) -> None:
    """speculators' rows have no gaps; SpecForge's other files keep their names."""
    dumps(tmp_path / "dumps")
    damage(tmp_path / "dumps")

    for kind, to in ((SpecForge(), "sf"), (Speculators(copy=False), "sp")):
        job = Job(tmp_path / "dumps", tmp_path / to, prompts("a", "b", "c"), partial=True)
        done = export(job, kind, ignore)
        assert (done.complete, done.samples, done.findings) == (True, 2, ())
        assert "b.safetensors" in {f.file for f in done.left_out}

    numbers = {int(name.split("_")[-1].split(".")[0]) for name in files(tmp_path / "sf") if name.endswith(".ckpt")}
    assert numbers == {0, 2}
    assert {name for name in files(tmp_path / "sp") if "hs_" in name} == {
        f"hidden_states/hs_{i}.safetensors" for i in (0, 1)
    }
    assert (tmp_path / "sp/hidden_states/hs_1.safetensors").samefile(tmp_path / "dumps/c.safetensors")


@pytest.mark.parametrize("kind", [SpecForge(), Speculators(copy=False)])
def test_a_second_run_writes_nothing(tmp_path: Path, kind: Format) -> None:
    """Nothing at all, as it has nothing to do."""
    dumps(tmp_path / "dumps")
    run(tmp_path, kind, prompts("a", "b"))
    before = touched(tmp_path / "to")

    again = run(tmp_path, kind, prompts("a", "b"))

    assert (again.complete, again.made) == (True, {})
    assert touched(tmp_path / "to") == before


@pytest.mark.parametrize("kind", [SpecForge(), Speculators(copy=False)])
def test_a_run_follows_what_changed(tmp_path: Path, kind: Format) -> None:
    """More dumps, a damaged file, a part file and a torn journal of a killed run; files without a row are removed."""
    dumps(tmp_path / "dumps")
    run(tmp_path, kind, prompts("a", "b", "c"))
    data = sorted(path for path in (tmp_path / "to").rglob("*_*.*") if path.suffix in (".ckpt", ".safetensors"))
    data[0].unlink()
    data[0].write_bytes(b"x")
    data[0].with_name(f".{data[0].name}.part").write_bytes(b"torn")
    with (tmp_path / "to" / JOURNAL).open("a") as file:
        file.write('{"file": "rows_0-2')

    less = run(tmp_path, kind, prompts("a", "b"))
    more = run(tmp_path, kind, prompts("a", "b", "c"))

    assert (less.samples, sum(less.made.values())) == (2, 1)
    assert (more.samples, sum(more.made.values())) == (3, 1)
    assert len([f for f in files(tmp_path / "to") if f.endswith((".ckpt", ".safetensors"))]) == 3
    assert not [f for f in files(tmp_path / "to") if f.endswith(".part")]


def test_another_mask_is_another_data_set(tmp_path: Path) -> None:
    """SpecForge's files hold it; speculators' columns do."""
    dumps(tmp_path / "dumps")
    for kind, to in ((SpecForge(), "sf"), (Speculators(copy=False), "sp")):
        export(Job(tmp_path / "dumps", tmp_path / to, prompts("a")), kind, ignore)
        state = touched(tmp_path / to)
        export(Job(tmp_path / "dumps", tmp_path / to, masked(prompts("a"), "p", "all")), kind, ignore)
        assert touched(tmp_path / to) != state

    assert read_torch_file(tmp_path / "sf/rows_0-2000/data_0.ckpt")["loss_mask"].tolist() == [1] * 5


def test_nobody_learns_from_every_token_unasked() -> None:
    """Prompts without masks are named, or that none has one; without prompts the way is."""
    with pytest.raises(ConfigError, match=r"p\.jsonl:1:1: a: no loss_mask"):
        masked((Prompt("a", 1, b""), *prompts("b")), "p.jsonl", "prompts")
    with pytest.raises(ConfigError, match=r"^p\.jsonl: no prompt has a loss_mask$"):
        masked((Prompt("a", 1, b""), Prompt("b", 2, b"")), "p.jsonl", "prompts")
    with pytest.raises(UsageError) as caught:
        masked(None, "", "prompts")

    assert "--mask all" in caught.value.fix
    assert masked(None, "", "all") is None
    assert masked(prompts("a"), "p", "prompts") == prompts("a")


def test_a_mask_of_another_length_is_a_fault(tmp_path: Path) -> None:
    """Prompts given as text are as long as the server makes them."""
    dumps(tmp_path / "dumps")

    done = run(tmp_path, SpecForge(), (Prompt("a", 1, b"", "some text", b"\1\1"),))

    assert [(f.file, f.code, f.reason) for f in done.findings] == [
        ("a.safetensors", "mask", "loss_mask of 2 for 5 tokens")
    ]


def test_a_dump_that_changes_under_the_export_is_not_taken(tmp_path: Path) -> None:
    """What was checked must be what was written."""

    class Slow(Speculators):
        def write(self, source: Path, row: making.Row, part: Path) -> str:
            way = super().write(source, row, part)
            if row.sample.id == "b":
                os.utime(source, ns=(1, 1))
            return way

    dumps(tmp_path / "dumps")

    done = run(tmp_path, Slow(copy=True))

    assert [(f.file, f.code) for f in done.findings] == [("b.safetensors", "changed")]


def test_folders_that_cannot_be_meant(tmp_path: Path) -> None:
    """Somebody's files, another format's export, each other, another export at work."""
    dumps(tmp_path / "dumps")
    run(tmp_path, SpecForge())
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()

    for to, kind in (
        ("to", Speculators(copy=False)),
        ("full", SpecForge()),
        ("dumps/x", SpecForge()),
        (".", SpecForge()),
    ):
        with pytest.raises(UsageError):
            export(Job(tmp_path / "dumps", tmp_path / to, None), kind, ignore)
    with open_target(tmp_path / "to", "specforge"), pytest.raises(LockedError):
        run(tmp_path, SpecForge())
    (tmp_path / "to/data_9.ckpt").touch()
    with pytest.raises(UsageError, match=r"data_9\.ckpt was not exported by hsops"):
        run(tmp_path, SpecForge())
    assert (tmp_path / "to/data_9.ckpt").exists()


def test_room_is_checked_first(tmp_path: Path) -> None:
    """A manifest of dumps that no disk holds."""
    sample = dumps(tmp_path / "dumps")["a"]
    (tmp_path / "dumps" / MANIFEST).unlink()
    add_line(tmp_path / "dumps", Sample(**{**{k: getattr(sample, k) for k in sample.__slots__}, "tokens": 2**50}))

    with pytest.raises(SpaceError):
        run(tmp_path, SpecForge())


@pytest.mark.parametrize(
    "engine, trunk, ids",
    [
        ("sglang==0.5.12", "deepseek_v2", (1, 3, 5)),
        ("sglang==0.5.13", "deepseek_v2", (2, 4, 6)),
        ("sglang==0.5.23", "llama", (1, 3, 5)),
        ("vllm", "", (2, 4, 6)),
    ],
)
def test_the_drafters_layer_ids_are_the_engines(tmp_path: Path, engine: str, trunk: str, ids: tuple[int, ...]) -> None:
    """The same states, told as each engine counts, where it looks for them."""
    dumps(tmp_path / "dumps")

    done = run(tmp_path, SpecForge(), engine=engine, trunk=trunk)

    config = json.loads((tmp_path / "to" / CONFIG).read_text())
    inner = config["eagle_config"] if engine.startswith("sglang") else config
    assert tuple(inner["eagle_aux_hidden_state_layer_ids"]) == done.layers.ids == ids
    assert (done.layers.boundaries, done.layers.output_layers) == ((2, 4, 6), (1, 3, 5))
    assert any(f"{list(ids)} for {engine}" in line for line in lines(done, to="x"))


@pytest.mark.parametrize(
    "engine, trunk", [("sglang", "llama"), ("tgi", ""), ("sglang==0.5.9", ""), ("sglang==0.5.9", "x")]
)
def test_an_engine_that_is_not_known_is_no_guess(tmp_path: Path, engine: str, trunk: str) -> None:
    """Ids that are wrong train nobody's drafter worse, they serve it worse: nothing is written."""
    dumps(tmp_path / "dumps")

    with pytest.raises(UsageError) as caught:
        run(tmp_path, SpecForge(), engine=engine, trunk=trunk)

    assert caught.value.fix
    assert not (tmp_path / "to").exists()


def test_a_torch_file_of_wrong_length_is_a_bug_that_is_told(tmp_path: Path) -> None:
    """Shape and bytes must agree."""
    with pytest.raises(ValueError, match="8 bytes for shape"):
        write_torch_file(tmp_path / "x", [Entry("a", "I64", (2,), [b"\0" * 8])])
