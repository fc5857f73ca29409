"""verify: every kind of fault is found, with its file and its place, and a good folder has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import safetensors

from hsops.core.container import parse_header, read_header
from hsops.core.dumps import MANIFEST, Sample, token_bytes, token_hash
from hsops.core.errors import BadDataError, UsageError
from hsops.core.events import ignore
from hsops.core.prompts import Prompt
from hsops.verify.verify import Verified, verify
from tests.dump_maker import checksum_of, container, fail, make, rewrite

T, SLOTS, H = 5, 3, 8


def run(folder: Path, prompts: tuple[Prompt, ...] | None = None) -> Verified:
    """Verify without showing progress."""
    return verify(folder, prompts, ignore)


def codes(folder: Path, prompts: tuple[Prompt, ...] | None = None) -> list[tuple[str, str]]:
    """(file, code) of every finding."""
    return [(f.file, f.code) for f in run(folder, prompts).findings]


def states(value: float | None = None, token: int = 2, slot: int = 1, column: int = 3) -> np.ndarray:
    """Random states with one value put in; None leaves them alone."""
    made = np.random.default_rng(7).standard_normal((T, SLOTS, H)).astype(np.float32)
    if value is not None:
        made[token, slot, column] = value
    return made


@pytest.mark.parametrize("checksum", ["xxh3", "crc32"])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("final", ["pre-norm", "none", "post-norm", "both"])
def test_a_good_folder_has_no_faults(tmp_path: Path, dtype: str, final: str, checksum: str) -> None:
    """All dtypes, both checksums, with and without the final state; failed samples are counted, not blamed."""
    for i in range(4):
        make(tmp_path, f"s{i}", range(1, T + i), dtype=dtype, final=final, checksum=checksum)
    fail(tmp_path, "f", "a row was lost")
    (tmp_path / "hello").mkdir()

    found = run(tmp_path, tuple(Prompt(f"s{i}", i + 1, token_bytes(range(1, T + i))) for i in range(4)))

    assert found.findings == ()
    assert (found.samples, found.tokens, found.compared, found.failed) == (4, 4 + 5 + 6 + 7, 4, 1)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("value, code", [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "inf")])
def test_nan_and_inf_are_found_where_they_are(tmp_path: Path, dtype: str, value: float, code: str) -> None:
    """The first token and boundary are named."""
    make(tmp_path, "a", range(T), dtype=dtype, states=states(value))

    (finding,) = run(tmp_path).findings

    assert finding.code == code
    assert finding.reason.endswith("in 1 rows, first at token 2 of boundary 3")


def test_the_largest_finite_bf16_is_no_inf(tmp_path: Path) -> None:
    """One bit below the pattern of Inf."""
    make(tmp_path, "a", range(T), dtype="BF16", states=states(3.3895e38))

    assert codes(tmp_path) == []


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_row_of_zeros_was_never_written(tmp_path: Path, dtype: str, zero: float) -> None:
    """A hole in the file reads as zeros; a single zero in a row is fine."""
    made = states(0.0)
    made[4, 2, :] = zero
    make(tmp_path, "a", range(T), dtype=dtype, states=made)

    (finding,) = run(tmp_path).findings

    assert (finding.code, finding.reason) == (
        "zero",
        "nothing but zeros in 1 rows, first at token 4 of the final state",
    )


@pytest.mark.parametrize("final", ["post-norm", "both"])
def test_the_state_after_the_norm_is_looked_at_too(tmp_path: Path, final: str) -> None:
    """In its own tensor, which a dump must have when its line says so."""
    last = np.ones((T, H), np.float32)
    last[3, 1] = np.nan
    make(tmp_path, "a", range(T), final=final, last=last)

    (finding,) = run(tmp_path).findings
    missing = make(tmp_path / "b", "a", range(T), final="none" if final == "post-norm" else "pre-norm")
    rewrite(tmp_path / "b", missing, final=final)

    assert (finding.code, finding.reason) == ("nan", "NaN in 1 rows, first at token 3 of the state after the norm")
    assert [(f.code, f.reason) for f in run(tmp_path / "b").findings] == [
        ("container", "no tensor 'last_hidden_states'")
    ]


def flip(folder: Path, sample: Sample) -> None:
    """One bit of the content."""
    data = bytearray((folder / sample.file).read_bytes())
    data[-5] ^= 1
    (folder / sample.file).write_bytes(data)


def truncate(folder: Path, sample: Sample) -> None:
    """A torn file."""
    (folder / sample.file).write_bytes((folder / sample.file).read_bytes()[:-1])


def remove(folder: Path, sample: Sample) -> None:
    """A lost file."""
    (folder / sample.file).unlink()


def link(folder: Path, sample: Sample) -> None:
    """A link to the right content is still no dump."""
    (folder / sample.file).rename(folder / ".elsewhere")
    (folder / sample.file).symlink_to(folder / ".elsewhere")


def relist(**changes: object) -> Callable[[Path, Sample], None]:
    """The manifest says something else."""
    return lambda folder, sample: rewrite(folder, sample, **changes)


def refile(tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Callable[[Path, Sample], None]:
    """Another container whose checksum the manifest has."""

    def apply(folder: Path, sample: Sample) -> None:
        data = container(tensors)
        (folder / sample.file).write_bytes(data)
        rewrite(folder, sample, bytes=len(data), checksum=checksum_of(data))

    return apply


def append(name: str, content: str) -> Callable[[Path, Sample], None]:
    """A file, or more of one."""

    def apply(folder: Path, _sample: Sample) -> None:
        with (folder / name).open("a") as file:
            file.write(content)

    return apply


IDS = ("I64", (T,), token_bytes(range(T)))
STATES = ("F32", (T, SLOTS, H), np.ones((T, SLOTS, H), np.float32).tobytes())


@pytest.mark.parametrize(
    "damage, file, code",
    [
        (flip, "a.safetensors", "checksum"),
        (truncate, "a.safetensors", "size"),
        (remove, "a.safetensors", "missing"),
        (link, "a.safetensors", "unreadable"),
        (relist(boundaries=(1, 2, 3)), "a.safetensors", "shape"),
        (relist(tokens=T + 1), "a.safetensors", "shape"),
        (relist(dtype="BF16"), "a.safetensors", "shape"),
        (relist(token_hash="sha256:0000000000000000"), "a.safetensors", "token-ids"),
        (refile({"hidden_states": STATES}), "a.safetensors", "container"),
        (refile({"hidden_states": STATES, "token_ids": IDS, "more": IDS}), "a.safetensors", "container"),
        (refile({"hidden_states": STATES, "token_ids": ("I32", (T,), bytes(4 * T))}), "a.safetensors", "shape"),
        (append("b.safetensors", "x"), "b.safetensors", "stray"),
        (append("a.safetensors.0123456789abcdef.part", "x"), "a.safetensors.0123456789abcdef.part", "part"),
        (append(MANIFEST, '{"id": "c"'), MANIFEST, "manifest"),
        (append(MANIFEST, '{"id": "c"}\n'), MANIFEST, "manifest"),
    ],
)
def test_every_damage_has_its_word(
    tmp_path: Path, damage: Callable[[Path, Sample], None], file: str, code: str
) -> None:
    """The fault and no other, with its file."""
    damage(tmp_path, make(tmp_path, "a", range(T)))

    assert set(codes(tmp_path)) == {(file, code)}


@pytest.mark.parametrize("key", ["bytes", "tokens", "hidden_size"])
@pytest.mark.parametrize("value", [2**70, -(2**70), -1])
def test_a_line_with_a_size_that_cannot_be_hides_nothing_else(tmp_path: Path, key: str, value: int) -> None:
    """It is named; the other dumps are checked, and counted, as if it were not there."""
    first, second, third = (make(tmp_path, name, range(T)) for name in ("a", "b", "c"))
    rewrite(tmp_path, first, replace(second, **{key: value}), third)  # type: ignore[arg-type]
    flip(tmp_path, third)

    found = run(tmp_path)

    assert [(f.file, f.code) for f in found.findings] == [
        (MANIFEST, "manifest"),
        ("c.safetensors", "checksum"),
        ("b.safetensors", "stray"),
    ]
    assert found.findings[0].reason == f"line 2: {key}: {value} is no size that a dump can have"
    assert (found.samples, found.bytes) == (2, first.bytes + third.bytes)


def test_an_optional_tensor_is_no_fault(tmp_path: Path) -> None:
    """SpecForge's post-norm state may come along."""
    last = ("F32", (T, H), np.ones((T, H), np.float32).tobytes())
    sample = make(tmp_path, "a", range(T))
    refile({"hidden_states": STATES, "last_hidden_states": last, "token_ids": IDS})(tmp_path, sample)

    assert codes(tmp_path) == []


def test_dumps_are_held_against_prompts(tmp_path: Path) -> None:
    """Other ids, another length, no dump, a failed one: each told with its place in the prompts."""
    for name in ("a", "b", "c", "extra"):
        make(tmp_path, name, range(T))
    fail(tmp_path, "d", "out of space")
    prompts = {"a": [0, 1, 2, 3, 4], "b": [0, 1, 9, 3, 4], "c": [0, 1], "d": [1], "e": [1]}

    found = run(tmp_path, tuple(Prompt(i, n, token_bytes(t)) for n, (i, t) in enumerate(prompts.items(), 1)))

    assert [(f.file[0], f.code, f.reason) for f in found.findings] == [
        ("b", "token-ids", "5 token ids; the first other one than the prompt's at 2: 2 for 9"),
        ("c", "token-ids", "5 token ids; the prompt has 2"),
        ("d", "no-dump", "failed on the host: out of space (prompts line 4)"),
        ("e", "no-dump", "never extracted, or not fetched (prompts line 5)"),
    ]


def test_two_different_dumps_of_one_id_are_a_fault(tmp_path: Path) -> None:
    """The same line twice is not."""
    sample = make(tmp_path, "a", range(T))
    rewrite(tmp_path, sample, sample)
    assert codes(tmp_path) == []

    rewrite(tmp_path, replace(sample, checksum="xxh3:0000000000000000"), sample)

    assert codes(tmp_path) == [("a.safetensors", "duplicate")]


def test_a_folder_without_manifest_and_no_folder(tmp_path: Path) -> None:
    """Errors, not an empty success."""
    with pytest.raises(BadDataError):
        run(tmp_path)
    with pytest.raises(UsageError):
        run(tmp_path / "none")


def entry(dtype: str, shape: list[object], begin: object, end: object) -> dict[str, object]:
    """A header's entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry("F32", [2], 0, 4)},  # too few bytes for the shape
        {"a": entry("F32", [1], 4, 8)},  # a hole before
        {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)},  # overlap
        {"a": entry("F32", [1], 0, 4)},  # bytes after the end
        {"a": entry("F32", [-2], 0, 8)},
        {"a": entry("F32", [True], 0, 8)},
        {"a": entry("F99", [2], 0, 8)},
        {"a": entry("F32", [2], "0", 8)},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": 3},
    ],
)
def test_headers_that_do_not_describe_the_file(header: dict[str, object]) -> None:
    """Ours and the library's reader refuse the same."""
    text = json.dumps(header).encode()

    with pytest.raises(BadDataError):
        parse_header(text, 8)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(len(text).to_bytes(8, "little") + text + bytes(8))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b' {"a": 1}', b'{"a": 1, "a": 1}', b"{" + b"[" * 9999, b"\xff"])
def test_headers_that_are_no_json_object(text: bytes) -> None:
    """A double name hides one tensor behind another."""
    with pytest.raises(BadDataError):
        parse_header(text, 8)


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 20, (9).to_bytes(8, "little") + b"{}"])
def test_files_that_are_no_container(tmp_path: Path, content: bytes) -> None:
    """Short and foreign files are told, not read."""
    (tmp_path / "x").write_bytes(content)

    with pytest.raises(BadDataError):
        read_header(tmp_path / "x")


def test_what_the_maker_writes_the_library_reads(tmp_path: Path) -> None:
    """Our test dumps are real safetensors files."""
    from safetensors.numpy import load_file

    sample = make(tmp_path, "a", [7, 8, 9], states=states()[:3])

    loaded = load_file(tmp_path / sample.file)

    assert loaded["token_ids"].tolist() == [7, 8, 9]
    assert np.array_equal(loaded["hidden_states"], states()[:3])
    assert token_hash(loaded["token_ids"].astype("<i8").tobytes()) == asdict(sample)["token_hash"]
