"""Unified diffs: read strictly, put in strictly, judged against a host's files."""

from __future__ import annotations

import difflib
import hashlib
import random
from dataclasses import replace

import pytest

from hsops.core.errors import ConfigError, UnsupportedError
from hsops.deploy import edits
from hsops.deploy.diffs import FileDiff, Hunk
from hsops.deploy.facts import Facts, FileFacts, Recorded
from hsops.deploy.hunks import Fitted, fit
from hsops.deploy.parts import DiffParts
from hsops.deploy.unified import parse

NO_END = "\\ No newline at end of file\n"
ABSENT = Recorded("absent", "", {}, "", {})


def made(old: bytes, new: bytes, context: int = 3, name: str = "x") -> bytes:
    """What ``diff -u`` makes of two files."""
    a, b = (data.replace(b"\n", b"\n\0").split(b"\0") for data in (old, new))
    a, b = ([line for line in side if line] for side in (a, b))
    head = [f"a/{name}".encode(), f"b/{name}".encode()]
    lines = difflib.diff_bytes(difflib.unified_diff, a, b, *head, n=context)
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)


def hunks(text: bytes) -> tuple[Hunk, ...]:
    return parse(text, "d", 1)[0].hunks


def faults(text: str, strip: int = 1) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode(), "d", strip)
    return [str(fault) for fault in caught.value.faults]


def facts(**files: bytes | None) -> Facts:
    found = {
        path: None if data is None else FileFacts(data, 0o644, hashlib.sha256(data).hexdigest())
        for path, data in files.items()
    }
    return Facts("0.5.9", "/site", ABSENT, found, {}, "", ())


def parts(text: bytes) -> DiffParts:
    return DiffParts("fix", "diff", "0" * 12, {"strip": 1}, "site", "fix.patch", parse(text, "fix.patch", 1))


def test_any_diff_goes_in_out_and_never_twice() -> None:
    """Two hundred pairs of files, with and without last line ends, LF and CRLF: the new bytes, the old ones again."""
    rnd = random.Random(7)

    for _ in range(200):
        end = rnd.choice([b"\n", b"\r\n"])
        lines = [b"line %d" % i for i in range(rnd.randrange(1, 30))]
        other = list(lines)
        for _ in range(rnd.randrange(1, 5)):
            at = rnd.randrange(len(other) + 1)
            other[at : at + rnd.randrange(2)] = [b"new %d" % rnd.randrange(10**6)] * rnd.randrange(2)
        old, new = (end.join(side) + end * (bool(side) and rnd.random() < 0.7) for side in (lines, other))
        if old == new:
            continue
        there = hunks(made(old, new))
        back = [hunk.reversed() for hunk in there]

        assert fit(old, there) == Fitted(new, (0,) * len(there))
        undone = fit(new, back)
        assert isinstance(undone, Fitted) and undone.content == old
        assert not isinstance(fit(new, there), Fitted) and not isinstance(fit(old, back), Fitted)


@pytest.mark.parametrize(
    "old,new",
    [
        (b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nc\r\n"),
        (b"a\nb\nc", b"a\nb\nC"),
        (b"a\nb\nc", b"a\nb\nc\n"),
        (b"a\nb\nc\n", b"a\nb\nc"),
        (b"caf\xe9\n\x0cpage\nx\x1cy\n\x85\n", b"caf\xe9\n\x0cpage\nx\x1cz\n\x85\n"),
        (b"", b"first\n"),
        (b"only\n", b""),
        (b"", b"\xef\xbb\xbfx"),
        (b"-- a\n+++ b\n", b"-- a\n+++ c\n"),
        (b"--- a\n+++ b\n@@ -1 +1 @@\n", b"--- x\n+++ y\n@@ -1 +1 @@\n"),
    ],
)
def test_bytes_of_any_kind_are_patched_as_they_are(old: bytes, new: bytes) -> None:
    """Line ends, the missing last one, what is no UTF-8, lines that look like a diff."""
    fitted = fit(old, hunks(made(old, new)))

    assert isinstance(fitted, Fitted) and fitted.content == new


@pytest.mark.parametrize(
    "host,why",
    [
        (b"1\n2\n3\n4\n5\n6\n7\n8\n9\n" * 2, "its lines stand 2 times, at lines 2, 11"),
        (
            b"1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n7\r\n8\r\n9\r\n",
            "only the line ends differ: CRLF on the host, LF in the diff",
        ),
        (b"1\n2\n3\n 4\n5\n6\n7\n8\n9\n", "only blanks differ"),
        (b"1\n2\n3\nfour\n5\n6\n7\n8\n9\n", "the host's lines differ"),
        (b"quite\nanother\nfile\n", "nothing like its lines is in the file"),
        (b"", "nothing like its lines is in the file"),
    ],
)
def test_a_hunk_that_does_not_stand_there_once_says_why(host: bytes, why: str) -> None:
    """Fuzz would put it in somewhere."""
    (misfit,) = fit(host, hunks(made(b"1\n2\n3\n4\n5\n6\n7\n8\n9\n", b"1\n2\n3\n4\nV\n6\n7\n8\n9\n")))  # type: ignore[misc]

    assert misfit.why.startswith(why)


def test_a_hunk_at_the_end_of_a_file_must_stand_there() -> None:
    """After somebody wrote more behind it, it is refused: else a line could be added a second time."""
    grown = fit(b"1\n2\n3\n4\nmore\n", hunks(made(b"1\n2\n3\n4\n", b"1\n2\n3\n4\nadded\n")))

    assert isinstance(grown, list)
    assert grown[0].why == "its lines must be the file's last ones, but stand at line 2"


def test_a_hunk_without_context_is_refused() -> None:
    """Its place could be anywhere."""
    old = b"".join(b"%d\n" % i for i in range(20))

    (misfit,) = fit(old, hunks(made(old, old.replace(b"11\n", b"eleven\n"), context=0)))  # type: ignore[misc]

    assert "make it with diff -U3" in misfit.why


def test_the_hosts_lines_stand_beside_the_hunks() -> None:
    """With their numbers; equal ones once; what cannot be seen is spelt out."""
    old = b"".join(b"line %d\n" % i for i in range(1, 30))
    host = b"#\n" + old.replace(b"line 14\n", b"line\t14\r\nextra\x07\n")

    (misfit,) = fit(host, hunks(made(old, old.replace(b"line 15\n", b"changed\n"))))  # type: ignore[misc]

    assert list(misfit.beside) == [
        "  both     13 line 12",
        "  both     14 line 13",
        "  diff        line 14",
        "  host     15 line\\t14\\r",
        "  host     16 extra\\x07",
        "  both     17 line 15",
        "  both     18 line 16",
        "  both     19 line 17",
        "  both     20 line 18",
    ]


@pytest.mark.parametrize(
    "text,fault",
    [
        ("", "d:1:1: no change to any file in it"),
        ("hello\n", "d:1:1: no change to any file in it"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n", "d:3:1: the diff ends inside the hunk: it is to have"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n+c\n", "d:6:1: a line too many: the header in line 3 counts fewer"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n b\n", "d:3:1: the hunk changes nothing"),
        (f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b = 30\n{NO_END}{NO_END}", f"d:7:1: '{NO_END[:-1]}' here, but no line"),
        (f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n{NO_END}{NO_END}+b\n", f"d:6:1: '{NO_END[:-1]}' here, but no line"),
        (f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n{NO_END}-a\n+b\n", f"d:4:1: '{NO_END[:-1]}' here, but no line"),
        (f"--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a\n+b\n{NO_END}+c\n", "d:3:1: the hunk goes on behind"),
        (f"--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n{NO_END}-b\n+c\n", "d:3:1: the hunk goes on behind"),
        ("--- a/x\n+++ b/x\n@@ one @@\n-a\n", "d:3:1: not a hunk's header"),
        ("@@ -1 +1 @@\n-a\n+b\n", "d:1:1: a hunk before any file name"),
        ("--- a/x\n+++ b/x\n", "d:1:1: no hunk follows"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "d:1:1: '../x' is not a plain path below root"),
        ("--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-a\n+b\n", ""),
        ("--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n", "d:1:1: x has no 2 parts; set strip to fewer"),
        ("--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "d:1:1: two names, x and y, and no 'rename from'"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "d:1:1: neither side names a file"),
        ("--- a/x\n+++ /dev/null\n@@ -1,2 +1 @@\n-a\n b\n", "d:1:1: the file is deleted, but lines stay"),
        ("--- /dev/null\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "d:1:1: the file is new, but has lines before"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n" * 2, "d:6:1: x is changed twice, first in line 1"),
        ("diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n", "d:2:1: the file is a symbolic link"),
        ("diff --git a/x b/x\nindex 1..2\nBinary files a/x and b/x differ\n", "d:3:1: a binary file"),
    ],
)  # fmt: skip
def test_what_a_program_would_have_to_guess_is_a_fault(text: str, fault: str) -> None:
    """With its line; never half a diff."""
    if not fault:
        assert parse(text.encode(), "d", 1)[0].paths == ("etc/x",)
        return

    assert any(found.startswith(fault) for found in faults(text)), faults(text)


def test_a_mailed_diff_is_read_like_any_other() -> None:
    """Words before and a signature behind; a name with a date; the blank of an empty line stripped by an editor."""
    text = b"From: me\n\n--- a/x\t2026-01-01\n+++ b/x\t2026-01-02\n@@ -1,3 +1,3 @@\n-a\n+b\n\n c\n-- \n2.39.5\n\n"

    assert parse(text, "d", 1) == (
        FileDiff(3, "x", "x", None, (Hunk(5, 1, (b"a\n", b"\n", b"c\n"), (b"b\n", b"\n", b"c\n"), 0, 2),)),
    )


def test_git_diffs_a_file_without_hunks_too() -> None:
    """An empty new file, a deleted empty one, a mode, a rename: told by the headers alone."""
    text = (
        "diff --git a/e b/e\nnew file mode 100755\ndiff --git a/g b/g\ndeleted file mode 100644\n"
        "diff --git a/m b/m\nold mode 100644\nnew mode 100755\n"
        "diff --git a/o b/n\nsimilarity index 100%\nrename from o\nrename to n\n"
    )

    found = parse(text.encode(), "d", 1)

    assert [(d.source, d.target, d.mode) for d in found] == [
        (None, "e", 0o755), ("g", None, None), ("m", "m", 0o755), ("o", "n", None),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["--- x.py.orig\n+++ x.py\n", "--- a/d/x.py\n+++ b/x.py\n"])
def test_two_names_of_one_file_mean_the_second(text: str) -> None:
    """``diff -u x.py.orig x.py``."""
    (found,) = parse(f"{text}@@ -1 +1 @@\n-a\n+b\n".encode(), "d", text.count("/") and 1)

    assert found.paths == ("x.py",)


def test_all_misfits_of_all_files_are_told_at_once() -> None:
    """A missing file, one in the way, a hunk: one look shows what has to be made anew."""
    text = made(b"a\n", b"b\n", name="gone") + made(b"a\n", b"b\n", name="other")
    text += b"--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"

    with pytest.raises(UnsupportedError) as caught:
        edits.of_diff(parts(text), facts(gone=None, other=b"q\n", new=b"else\n"))

    said = caught.value.message
    assert "gone: no such file on the host (fix.patch:1); strip is 1" in said
    assert "other: hunk 1 of 1 (fix.patch:8, for line 1): nothing like its lines" in said
    assert "new: the diff creates it (fix.patch:11), but it is there" in said
    (error,) = caught.value.as_json()
    told = {one["file"]: one for one in error["detail"]["misfits"]}
    assert (told["gone"]["hunk"], told["gone"]["diff_line"]) == (None, 1)
    assert (told["new"]["why"], told["new"]["diff_line"]) == ("the diff creates it, but it is there", 11)
    assert (told["other"]["hunk"], told["other"]["expected"]) == (1, ["a\n"])
    assert (told["other"]["line"], told["other"]["found"], told["other"]["places"]) == (None, [], [])


@pytest.mark.parametrize(
    "host,line,found,places",
    [
        (b"0\n" + b"1\n2\n3 \n4\n5\n6\n7\n", 2, ["1\n", "2\n", "3 \n", "4\n", "5\n", "6\n", "7\n"], [2]),
        (b"1\n2\n3\n4\n5\n6\n7\n" * 2, 1, ["1\n", "2\n", "3\n", "4\n", "5\n", "6\n", "7\n"], [1, 8]),
        (b"1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n7\r\n", 1, [f"{i}\r\n" for i in range(1, 8)], [1]),
        (b"1\n2\n3\n\xff4\n5\n6\n7", 1, ["1\n", "2\n", "3\n", "\\xff4\n", "5\n", "6\n", "7"], [1]),
        (b"", None, [], []),
    ],
    ids=["blank", "twice", "CRLF", "no UTF-8, no end", "empty"],
)  # fmt: skip
def test_a_misfit_is_told_to_programs_with_the_hosts_lines(
    host: bytes, line: int | None, found: list[str], places: list[int]
) -> None:
    """What the hunk expects and what is there, line ends and all; where it nearly or repeatedly stands."""
    old = b"1\n2\n3\n4\n5\n6\n7\n"
    text = made(old, old.replace(b"4", b"four"), name="x")

    with pytest.raises(UnsupportedError) as caught:
        edits.of_diff(parts(text), facts(x=host))

    (told,) = caught.value.as_json()[0]["detail"]["misfits"]
    assert told["expected"] == ["1\n", "2\n", "3\n", "4\n", "5\n", "6\n", "7\n"]
    assert (told["file"], told["hunk"], told["diff"], told["diff_line"]) == ("x", 1, "fix.patch", 3)
    assert (told["line"], told["found"], told["places"]) == (line, found, places)


def test_a_file_is_patched_from_its_original_while_it_is_ours() -> None:
    """A stale patch is not patched on top; what an upgrade brought is taken as it is."""
    held = facts(x=b"old patch\n")
    recorded = Recorded("applied", "1" * 12, {}, "0.5.9", {"x": "applied"})
    ours = replace(held, recorded=recorded, originals={"x": facts(x=b"original\n").files["x"]})
    upgraded = replace(ours, recorded=replace(recorded, files={"x": "replaced"}), files=facts(x=b"original\n").files)

    for host in (ours, upgraded):
        (edit,) = edits.of_diff(parts(made(b"original\n", b"new\n")), host).edits
        assert (edit.content, edit.original) == (b"new\n", b"original\n")
        assert edit.before == host.files["x"].sha256  # type: ignore[union-attr]


def test_a_file_that_an_upgrade_took_away_is_none_to_patch() -> None:
    """Nor is its old text: the new SGLang would hold a module of the old one."""
    recorded = Recorded("absent", "1" * 12, {}, "0.5.9", {"x": "replaced"})
    host = replace(facts(x=None), recorded=recorded, originals={"x": facts(x=b"original\n").files["x"]})

    with pytest.raises(UnsupportedError, match="x: no such file on the host"):
        edits.of_diff(parts(made(b"original\n", b"new\n")), host)


def gnu(old: bytes, new: bytes, stamps: tuple[str, str], name: str = "x") -> bytes:
    """What ``diff -ruN`` makes of two files."""
    lines = made(old, new, name=name).split(b"\n", 2)
    heads = [line + b"\t" + stamp.encode() for line, stamp in zip(lines[:2], stamps, strict=True)]
    return b"\n".join([b"diff -ruN a/x b/x", *heads, lines[2]])


NOW = "2026-11-30 10:00:00.123456789 +0000"


@pytest.mark.parametrize(
    "none", ["1970-01-01 00:00:00.000000000 +0000", "1970-01-01 01:00:00.000000000 +0100", "1969-12-31 16:00:00 -0800"]
)
def test_a_side_of_the_epoch_is_no_file(none: str) -> None:
    """``diff -N`` says so in any time zone; git says /dev/null. An empty file that stays has a time of its own."""
    (new,), (gone,) = (parse(gnu(*sides), "d", 1) for sides in ((b"", b"1\n", (none, NOW)), (b"1\n", b"", (NOW, none))))
    (emptied,) = parse(gnu(b"1\n", b"", (NOW, NOW)), "d", 1)
    (old,) = parse(gnu(b"1\n2\n", b"1\n3\n", (none, NOW)), "d", 1)

    assert [(one.source, one.target) for one in (new, gone, emptied, old)] == [
        (None, "x"),
        ("x", None),
        ("x", "x"),
        ("x", "x"),
    ]


@pytest.mark.parametrize(
    "line,fault",
    [
        ("Binary files a/x.so and b/x.so differ", "a binary file"),
        ("Only in b/sglang: new.py", "new.py is on one side only: make the diff with -N"),
        ("Only in b: with blank.py", "with blank.py is on one side only"),
        ("Only in b/sglang: __pycache__", ""),
        ("Only in b/__pycache__: x.cpython-311.pyc", ""),
    ],
)
def test_what_diff_r_does_not_show_is_not_passed_over(line: str, fault: str) -> None:
    """It would be missing on the host without a word; in a mail above git's diffs such a line is text."""
    text = gnu(b"1\n", b"2\n", (NOW, NOW)).decode()

    if fault:
        assert fault in faults(f"{line}\n{text}")[0] and fault in faults(f"{text}{line}\n")[0]
    else:
        assert parse(f"{line}\n{text}{line}\n".encode(), "d", 1)
    assert parse(f"{line}\ndiff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n".encode(), "d", 1)
