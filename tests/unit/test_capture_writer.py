"""From staged rows to dumps and manifest, without torch."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import threading
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from hsops.core.dumps import parse_sample, token_hash
from hsops.core.events import ignore
from hsops.payload.hsops_hs_dump import files
from hsops.payload.hsops_hs_dump.layout import PAGE, Layout
from hsops.payload.hsops_hs_dump.manifest import MANIFEST, Manifest
from hsops.payload.hsops_hs_dump.rows import Failure, Piece, Ticket, place
from hsops.payload.hsops_hs_dump.writer import PASSES
from hsops.verify.verify import verify
from tests.unit.capture_parts import InMemory, manifest, new_writer, whole_pass


def test_a_batch_becomes_one_file_a_sample(tmp_path: Path) -> None:
    """safetensors reads them, the manifest's lines are the core's, and nothing unfinished is left."""
    writer = new_writer(tmp_path)
    ids, pieces = whole_pass({"a": [7], "b": list(range(100, 133)), "c": [1, 2]})

    refused = writer.submit(InMemory(ids, 3, chunk=5), pieces)
    writer.close()

    assert refused == ""
    for sample in manifest(tmp_path):
        loaded = load_file(tmp_path / sample.file)
        assert loaded["hidden_states"].shape == sample.shape
        assert (loaded["hidden_states"] == loaded["token_ids"][:, None, None]).all()
        assert sample.bytes == (tmp_path / sample.file).stat().st_size
        assert sample.token_hash == token_hash(loaded["token_ids"].tobytes())
    assert {sample.id for sample in manifest(tmp_path)} == {"a", "b", "c"}
    assert not list(tmp_path.glob("*.part"))


def test_the_checksum_is_of_the_whole_file(tmp_path: Path) -> None:
    """What a reader computes over the bytes on disk."""
    writer = new_writer(tmp_path)
    writer.submit(InMemory(*_one("a", [1, 2, 3])[:1], 3), _one("a", [1, 2, 3])[1])
    writer.close()

    (sample,) = manifest(tmp_path)
    name, value = sample.checksum.split(":")
    digest = files._new_hash()
    digest.update((tmp_path / sample.file).read_bytes())

    assert (name, value) == (files.HASH, digest.hexdigest())


def test_chunks_of_a_prompt_in_several_passes_make_one_file(tmp_path: Path) -> None:
    """The name appears only with the last row."""
    writer = new_writer(tmp_path)
    ticket = Ticket("a", 5)

    first, _ = place([ticket], [3], [0])
    writer.submit(InMemory([10, 11, 12], 3), first)
    second, _ = place([ticket], [2], [3])
    writer.submit(InMemory([13, 14], 3), second)
    writer.close()

    assert load_file(tmp_path / "a.safetensors")["token_ids"].tolist() == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("final", ["post-norm", "both"])
def test_the_state_after_the_norm_is_a_tensor_of_its_own(tmp_path: Path, final: str) -> None:
    """Its rows come with the others, and the checksum is of the file as it lies there."""
    writer, ticket = new_writer(tmp_path, final=final), Ticket("a", 5)
    for first, ids in ((0, [10, 11, 12]), (3, [13, 14])):
        pieces, _ = place([ticket], [len(ids)], [first])
        writer.submit(InMemory(ids, 2 + (final == "both"), last=True, chunk=2), pieces)
    writer.close()

    loaded = load_file(tmp_path / "a.safetensors")
    assert verify(tmp_path, None, ignore).findings == ()
    assert loaded["hidden_states"].shape == (5, 2 + (final == "both"), 4)
    assert (loaded["hidden_states"] == loaded["token_ids"][:, None, None]).all()
    assert (loaded["last_hidden_states"] == -loaded["token_ids"][:, None]).all()


def test_a_failed_sample_leaves_a_line_and_no_file(tmp_path: Path) -> None:
    """Once, with its reason; what still comes of it is ignored, the others are whole."""
    writer = new_writer(tmp_path)
    bad, good = Ticket("bad", 4), Ticket("good", 1)
    first, _ = place([bad], [2], [0])
    writer.submit(InMemory([1, 2], 3), first)

    writer.fail(Failure(bad, "why not"))
    writer.fail(Failure(bad, "again"))
    later, _ = place([good, bad], [1, 2], [0, 2])
    writer.submit(InMemory([5, 3, 4], 3), later)
    writer.close()

    lines = {sample.id: sample for sample in manifest(tmp_path)}
    assert (lines["bad"].status, lines["bad"].reason) == ("failed", "why not")
    assert lines["good"].ok and len(manifest(tmp_path)) == 2
    assert [path.name for path in tmp_path.glob("*.safetensors*")] == ["good.safetensors"]


@pytest.mark.parametrize("how", ["folder removed", "manifest removed", "folder moved", "manifest replaced"])
def test_a_folder_that_is_emptied_under_the_server_is_begun_anew(tmp_path: Path, how: str) -> None:
    """People make room in a RAM disk while the server runs. No line may go into a file that nobody can open."""
    folder = tmp_path / "dumps"
    lines = Manifest(str(folder))
    lines.append({"id": "first"})
    if how == "folder removed":
        shutil.rmtree(folder)
    elif how == "manifest removed":
        (folder / "manifest.jsonl").unlink()
    elif how == "folder moved":
        folder.rename(tmp_path / "old")
    else:
        (tmp_path / "new").write_text("")
        (tmp_path / "new").replace(folder / "manifest.jsonl")

    dump = files.DumpFile(str(folder), "a", Layout("F32", 4, 1, 3, 4, False, {}))
    dump.rows(0, [memoryview(bytes(48))], bytes(8))
    dump.finish()
    lines.append({"id": "second"})
    lines.close()

    assert (folder / "manifest.jsonl").read_text() == '{"id":"second"}\n'
    assert (folder / "a.safetensors").exists()


def test_a_line_that_does_not_fit_leaves_nothing_of_itself(tmp_path: Path) -> None:
    """A limit on the file's size cuts the line as a full disk does; the next one that fits is not glued to it."""
    manifest_ = Manifest(str(tmp_path))
    manifest_.append({"id": "first"})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, hard))
    try:
        with pytest.raises(OSError, match="cut"):
            manifest_.append({"id": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    manifest_.append({"id": "next"})
    manifest_.close()

    assert (tmp_path / "manifest.jsonl").read_text().splitlines() == ['{"id":"first"}', '{"id":"next"}']


def test_a_pass_that_cannot_be_copied_fails_its_samples_only(tmp_path: Path) -> None:
    """The thread lives on."""
    writer = new_writer(tmp_path)
    ids, pieces = whole_pass({"a": [1], "b": [2]})
    writer.submit(InMemory(ids, 3, broken="copy failed"), pieces)

    ids, pieces = whole_pass({"c": [3]})
    writer.submit(InMemory(ids, 3), pieces)
    writer.close()

    assert {sample.id: sample.ok for sample in manifest(tmp_path)} == {"a": False, "b": False, "c": True}


def test_a_full_queue_is_waited_for_once_and_then_refused(tmp_path: Path) -> None:
    """The forward pass never hangs on a dead disk: the pass's samples fail."""
    read, write = os.pipe()
    writer = new_writer(tmp_path, wait_s=0.05)

    class Stuck(InMemory):
        def token_bytes(self) -> bytes:
            os.read(read, 1)
            return super().token_bytes()

    passes = [whole_pass({f"s{i}": [i]}) for i in range(PASSES + 2)]
    refused = [writer.submit(Stuck(ids, 3), pieces) for ids, pieces in passes]
    os.write(write, b"x" * len(passes))
    writer.close()
    os.close(read)
    os.close(write)

    assert [bool(text) for text in refused] == [False] * PASSES + [True] * 2
    assert len(manifest(tmp_path)) == PASSES


def test_a_new_run_sweeps_and_heals(tmp_path: Path) -> None:
    """Unfinished files of the last run go away; a cut manifest line does not spoil the next one."""
    (tmp_path / "old.safetensors.part").write_bytes(b"x")
    (tmp_path / MANIFEST).write_bytes(b'{"id":"cut')

    writer = new_writer(tmp_path)
    ids, pieces = whole_pass({"a": [1]})
    writer.submit(InMemory(ids, 3), pieces)
    writer.close()

    cut, line = (tmp_path / MANIFEST).read_text().splitlines()
    assert cut == '{"id":"cut' and parse_sample(line).id == "a"
    assert not list(tmp_path.glob("*.part"))


def test_a_writer_that_cannot_be_opened_leaves_no_thread_and_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank asks for a check request's writer again every ten seconds: what a try leaves adds up over a night."""
    start = threading.Thread.start

    def no_dispatcher(self: threading.Thread) -> None:
        if self.name == "hsops-dispatch":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", no_dispatcher)
    with pytest.raises(RuntimeError, match="new thread"):
        new_writer(tmp_path)
    writing = [thread for thread in threading.enumerate() if thread.name.startswith("hsops-write")]
    for thread in writing:
        thread.join(10)

    assert not any(thread.is_alive() for thread in writing)
    assert str(tmp_path / MANIFEST) not in _open_files()


def test_rows_start_on_a_page() -> None:
    """The header is padded to pages and still is what safetensors reads: length, JSON, spaces."""
    layout = Layout("BF16", 2, 10, 4, 7168, False, {"format": "hsops-dump/1"})

    header = layout.header()
    told = json.loads(header[8:])

    assert len(header) % PAGE == 0 and int.from_bytes(header[:8], "little") == len(header) - 8
    assert told["hidden_states"]["data_offsets"] == [0, 10 * layout.row] and layout.row == 57344
    assert layout.size(header) == len(header) + 10 * (57344 + 8)


def _one(name: str, ids: list[int]) -> tuple[list[int], list[Piece]]:
    return whole_pass({name: ids})


def _open_files() -> set[str]:
    with os.scandir("/proc/self/fd") as found:
        return {os.path.realpath(entry.path) for entry in found}
