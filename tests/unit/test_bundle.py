"""Bundles: the same verdict anywhere, no secrets, and nothing read that is not what was written."""

from __future__ import annotations

import gzip
import io
import json
import tarfile

import pytest

from hsops.core.errors import BadDataError
from hsops.diagnose import judge
from hsops.diagnose.bundle import pack, pack_log, redact, unpack
from hsops.diagnose.reading import from_log, from_probe
from tests import diagnose_cases

LOG = b"[2026-11-29 17:44:16 TP1] Scheduler hit an exception: Traceback (most recent call last):\nValueError: no\n"


def raw() -> dict[str, object]:
    """Evidence of a hang."""
    return diagnose_cases.raw(diagnose_cases.load("seeds-hang"))


def members(data: bytes) -> dict[str, bytes]:
    """A bundle's parts."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name: file.read() for m in tar.getmembers() if (file := tar.extractfile(m))}


def packed(parts: dict[str, bytes]) -> bytes:
    """A tar of any parts."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("name", [n for n in diagnose_cases.names() if "live" in diagnose_cases.load(n)])
def test_a_bundle_is_judged_as_its_evidence_was(name: str) -> None:
    """Every live case, with the ranks that were expected and what a watch had seen."""
    case = diagnose_cases.load(name)
    seen, tp = diagnose_cases.raw(case), case.get("tp", 1)

    replayed = judge(unpack(pack(seen, run=None, host="rtx8", tp=tp, unmoved_s=600.0), name="x"))

    assert replayed == judge(from_probe(seen, host="rtx8", tp=tp, unmoved_s=600.0))


def test_a_log_makes_a_bundle_too() -> None:
    """With the ranks that it was read with."""
    replayed = judge(unpack(pack_log(LOG, path="server.log", lines=2, tp=4), name="x"))

    assert replayed == judge(from_log("server.log", LOG, tp=4, lines=2))


def test_equal_evidence_gives_equal_bytes() -> None:
    """No clock, no user, no order in it."""
    assert pack(raw(), run=None, host="x") == pack(raw(), run=None, host="x")


def test_a_bundle_is_small_and_opens_with_tar() -> None:
    """The log stands beside the evidence, as text."""
    data = pack(raw(), run=None, host="x")

    assert list(members(data)) == ["manifest.json", "evidence.json", "head.log", "tail.log"]
    assert len(data) < sum(map(len, members(data).values())) / 3


def test_no_secret_gets_into_a_bundle() -> None:
    """Not from the log, not from a command line."""
    seen = raw() | {"processes": [{"pid": 1, "role": "launcher", "state": "S", "argv": ["x", "--api-key", "s3cr3t0"]}]}
    seen["log"] = {"path": "x", "head": "api_key='s3cr3t0', HF_TOKEN=hf_abcdefghij\n"}

    parts = members(pack(seen, run=None, host="x"))

    assert not [name for name, data in parts.items() if b"s3cr3t0" in data or b"hf_abc" in data]


@pytest.mark.parametrize(
    "text",
    [
        "max_total_num_tokens=65536, chunked_prefill_size=8192, max_prefill_tokens=16384, context_len=163840",
        "tokenizer_path='/models/k2', skip_tokenizer_init=False, tokenizer_mode='auto', token_ids=[1111, 12]",
        "tbo_token_distribution_threshold=0.48, api_key=None",
        'File "/srt/utils/hf_transformers/config.py", line 217, in get_config; hf_overrides',
        "#new-token: 16384, #cached-token: 2048, token usage: 0.25",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """A rule that reads it must find it in the bundle, too."""
    assert redact(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=s3cr3t0",
        "--hf-token s3cr3t0 --tp 8",
        "launch_server --api-key s3cr3t0",
        "auth_token: s3cr3t0",
        '"hf_token": "s3cr3t0"',
        "AWS_SECRET_ACCESS_KEY=s3cr3t0",
        "tokens=s3cr3t0",
        "HF_TOKEN_WRITE=s3cr3t0, access_token_x: s3cr3t0",
        "Authorization: Bearer s3cr3t0",
        "from hf_xKs3cr3t0abcdef it came",
    ],
)
def test_a_secret_goes(text: str) -> None:
    """However it is written."""
    assert "s3cr3t0" not in redact(text)


@pytest.mark.parametrize("part", ["evidence.json", "head.log"])
def test_a_changed_part_is_refused(part: str) -> None:
    """Its hash is listed."""
    parts = members(pack(raw(), run=None, host="x"))
    parts[part] = parts[part].replace(b"1", b"2")

    with pytest.raises(BadDataError, match=part):
        unpack(packed(parts), name="x")


@pytest.mark.parametrize("lacking", ["manifest.json", "evidence.json", "tail.log"])
def test_a_missing_part_is_refused(lacking: str) -> None:
    """None is optional."""
    parts = members(pack(raw(), run=None, host="x"))
    del parts[lacking]

    with pytest.raises(BadDataError):
        unpack(packed(parts), name="x")


def test_damage_anywhere_is_told() -> None:
    """A bundle cut short or with another byte is not evidence, whatever the byte."""
    data = pack(raw(), run=None, host="x")

    for broken in (data[:-9], data[: len(data) // 2], data[:200] + bytes([data[200] ^ 255]) + data[201:]):
        with pytest.raises(BadDataError):
            unpack(broken, name="x")


def test_a_strangers_archive_is_refused() -> None:
    """Links in place of parts, other schemas, other archives."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        link = tarfile.TarInfo("manifest.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    other = packed(members(pack(raw(), run=None, host="x")) | {"manifest.json": json.dumps({"schema": "x"}).encode()})

    for data in (out.getvalue(), other, gzip.compress(b"no tar")):
        with pytest.raises(BadDataError):
            unpack(data, name="x")
