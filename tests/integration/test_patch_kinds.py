"""Patches of kind ``diff`` and ``files``, from inventory.yaml to the files of a host over the real sshd, and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsops.cli.deploy import Wish
from hsops.cli.launch import Wish as Launch
from hsops.cli.launch import bring_up
from hsops.core.errors import HsopsError, StalePlanError
from hsops.deploy.plan import OLD_MODULE
from hsops.payload.hsops_hs_dump.strategy import REGISTRY_FILE
from tests.hosts import Server
from tests.integration.practice_site import LINES, MODEL, Site, practice_site
from tests.unit.sources import REGISTRY

DIFF = "  fix: { kind: diff, diff: ./fix.patch }\n"
FILES = "  add: { kind: files, from: ./mine, to: sglang/mine }\n"
CHANGED = "".join(LINES).replace("line 20\n", "line twenty\n")


@pytest.fixture
def site(server: Server, tmp_path: Path) -> Iterator[Site]:
    site = practice_site(server.spec, tmp_path)
    with site.stack:
        yield site


def test_a_diff_goes_in_and_comes_out_byte_for_byte(site: Site) -> None:
    """Shown first, with the diff; a second deploy writes nothing; --revert leaves no trace."""
    before = site.tree()
    site.diff({MODEL: CHANGED, "sglang/new.py": "x = 1\n", "sglang/version.py": None})
    site.patches(DIFF)

    looked = site.ok("--check", "--diff")["patches"][0]
    assert looked["state"] == "absent" and "+line twenty" in looked["diff"] and site.tree() == before
    site.ok()
    once = {path: (site.root / path).stat().st_mtime_ns for path in site.tree()}

    assert (site.root / MODEL).read_text() == CHANGED and (site.root / "sglang/new.py").read_text() == "x = 1\n"
    assert not (site.root / "sglang/version.py").exists()
    assert site.states() == {"fix": "applied"}
    assert site.ok()["changes"] == 0
    assert {path: (site.root / path).stat().st_mtime_ns for path in site.tree()} == once
    assert site.ok("--revert")["changes"] == 3
    assert site.tree() == before and site.states() == {"fix": "absent"}


def test_a_newer_diff_is_put_in_from_the_original(site: Site) -> None:
    """The applied one is stale; what only the old one changed comes back; a revert leads behind both."""
    before = site.tree()
    site.diff({MODEL: CHANGED, "sglang/new.py": "x = 1\n"})
    site.patches(DIFF)
    site.ok()
    applied = site.tree()
    site.ok("--revert")
    site.diff({MODEL: CHANGED.replace("twenty", "zwanzig")}, "newer.patch")
    site.ok()
    assert site.tree() == applied
    (site.folder / "newer.patch").rename(site.folder / "fix.patch")

    assert site.states() == {"fix": "stale"}
    kinds = {a["path"]: a["kind"] for a in site.ok()["patches"][0]["actions"]}

    assert kinds == {MODEL: "update", "sglang/new.py": "remove"}
    assert (site.root / MODEL).read_text() == CHANGED.replace("twenty", "zwanzig")
    site.ok("--revert")
    assert site.tree() == before


def test_a_hunk_that_does_not_fit_is_shown_beside_the_hosts_lines(site: Site) -> None:
    """One line differs: strict means no. The diff's line and the host's, with its number; nothing is changed."""
    site.diff({MODEL: CHANGED, "sglang/new.py": "x = 1\n"})
    site.patches(DIFF)
    site.write(MODEL, "added\n" * 5 + "".join(LINES).replace("line 21\n", "line  21\n"))

    said = site.refused()

    assert f"{MODEL}: hunk 1 of 1 (./fix.patch:" in said and "only blanks differ" in said
    assert "  both     25 line 20\n" in said
    assert "  diff        line 21\n  host     26 line  21\n" in said
    assert "Traceback" not in said


def test_lines_that_moved_are_told_and_lines_that_stand_twice_are_refused(site: Site) -> None:
    """The place is unique, not the number."""
    site.diff({MODEL: CHANGED})
    site.patches(DIFF)
    site.write(MODEL, "added\n" * 5 + "".join(LINES))

    planned = site.ok("--check")["patches"][0]
    site.write(MODEL, "".join(LINES * 2))
    said = site.refused()

    assert planned["warnings"] == [f"{MODEL}: hunk 1 stands 5 lines further down than the diff says"]
    assert "its lines stand 2 times, at lines 17, 57" in said


def test_what_somebody_did_by_hand_is_not_done_twice(site: Site) -> None:
    """The tree has the change without a record: foreign; --force takes it over, and a revert undoes it."""
    before = site.tree()
    end = "".join(LINES) + "one more\n"
    site.diff({MODEL: end, "sglang/new.py": "x = 1\n"}, "fix.patch", "--no-prefix")
    site.patches(DIFF.replace("}", ", strip: 0 }"))
    site.write(MODEL, end)
    site.write("sglang/new.py", "x = 1\n")

    assert site.states() == {"fix": "foreign"}
    said = site.refused()
    assert "has the change already, by hand" in said and "--force takes it over" in said
    site.ok("--force")
    assert site.states() == {"fix": "applied"} and (site.root / MODEL).read_text() == end
    site.ok("--revert")
    assert site.tree() == before


def test_a_file_that_was_edited_since_is_foreign(site: Site) -> None:
    """Neither a newer deploy nor a revert goes over it without --force; with it the original comes back."""
    before = site.tree()
    site.diff({MODEL: CHANGED})
    site.patches(DIFF)
    site.ok()
    site.write(MODEL, CHANGED + "somebody's\n")

    assert site.states() == {"fix": "foreign"}
    assert "somebody edited" in site.refused() and "somebody edited" in site.refused("--revert")
    site.ok("--force")
    assert (site.root / MODEL).read_text() == CHANGED
    site.write(MODEL, CHANGED + "somebody's\n")
    site.ok("--revert", "--force")
    assert site.tree() == before


def test_one_of_two_files_put_back_by_hand_is_partial(site: Site) -> None:
    """A deploy completes it, and so it does for one that was deleted; a revert gives that its own mode too."""
    site.write("sglang/tool.py", "a\nb\nc\n", 0o755)
    before = site.tree()
    site.diff({MODEL: CHANGED, "sglang/tool.py": "a\nB\nc\n"})
    (site.root / "sglang/tool.py").chmod(0o755)
    site.patches(DIFF)
    site.ok()
    whole = site.tree()

    site.write(MODEL, "".join(LINES))
    assert site.states() == {"fix": "partial"}
    site.ok()
    assert site.tree() == whole
    (site.root / "sglang/tool.py").unlink()
    assert site.states() == {"fix": "partial"}
    site.ok()
    assert site.tree() == whole
    site.ok("--revert")
    assert site.tree() == before


def test_git_headers_are_followed(site: Site) -> None:
    """Modes, a rename with a change, a copy, a name that git quotes: all there, all undone."""
    site.write("sglang/tool.py", "".join(LINES))
    site.write("sglang/naïve.py", "a\n")
    before = site.tree()
    (site.folder / "fix.patch").write_text(
        "diff --git a/sglang/tool.py b/sglang/moved.py\nold mode 100644\nnew mode 100755\nsimilarity index 90%\n"
        "rename from sglang/tool.py\nrename to sglang/moved.py\n--- a/sglang/tool.py\n+++ b/sglang/moved.py\n"
        "@@ -1,3 +1,3 @@\n-line 1\n+line one\n line 2\n line 3\n"
        f"diff --git a/{MODEL} b/sglang/copy.py\nsimilarity index 100%\ncopy from {MODEL}\ncopy to sglang/copy.py\n"
        'diff --git "a/sglang/na\\303\\257ve.py" "b/sglang/na\\303\\257ve.py"\nold mode 100644\nnew mode 100700\n'
    )
    site.patches(DIFF)

    site.ok()
    tree = site.tree()

    assert tree["sglang/moved.py"] == (0o755, "".join(LINES).replace("line 1\n", "line one\n", 1).encode())
    assert "sglang/tool.py" not in tree and tree["sglang/copy.py"] == tree[MODEL]
    assert tree["sglang/naïve.py"] == (0o700, b"a\n")
    (site.root / "sglang/naïve.py").chmod(0o644)
    assert site.states() == {"fix": "partial"}
    site.ok()
    assert site.tree() == tree
    site.ok("--revert")
    assert site.tree() == before


def test_a_folder_is_copied_with_its_modes(site: Site) -> None:
    """Into a folder of its own, which a revert takes away; byte code stays behind."""
    before = site.tree()
    for path, mode in (("a.py", 0o644), ("deep/er/run.sh", 0o755), ("empty.py", 0o600), ("__pycache__/a.pyc", 0o644)):
        made = site.folder / "mine" / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(b"" if "empty" in path else f"bytes of {path}\xff".encode("latin-1"))
        made.chmod(mode)
    site.patches(FILES)

    site.ok()
    added = {path: told for path, told in site.tree().items() if path not in before}

    assert added == {
        "sglang/mine/a.py": (0o644, b"bytes of a.py\xff"),
        "sglang/mine/deep/er/run.sh": (0o755, b"bytes of deep/er/run.sh\xff"),
        "sglang/mine/empty.py": (0o600, b""),
    }
    (site.folder / "mine/a.py").chmod(0o755)
    assert site.states() == {"add": "stale"}
    assert site.ok()["patches"][0]["actions"] == [{"kind": "mode", "path": "sglang/mine/a.py", "bytes": 14}]
    site.ok("--revert")
    assert site.tree() == before and not (site.root / "sglang/mine").exists()


def test_a_file_replaces_one_of_sglangs_and_goes_again(site: Site) -> None:
    """The plan says "update"; the original and its mode come back."""
    (site.root / MODEL).chmod(0o640)
    before = site.tree()
    (site.folder / "mine").write_text("all new\n")
    site.patches(FILES.replace("sglang/mine", MODEL))

    assert site.ok("--check")["patches"][0]["actions"][0]["kind"] == "update"
    site.ok()
    assert (site.root / MODEL).read_text() == "all new\n"
    site.ok("--revert")
    assert site.tree() == before


def test_another_root_needs_no_sglang_and_is_found_when_it_left_the_inventory(site: Site, tmp_path: Path) -> None:
    """An absolute folder; a patch that is gone from the inventory is reverted where the host remembers it."""
    (tmp_path / "engine").mkdir()
    (site.folder / "mine").write_text("x\n")
    entry = f"  add: {{ kind: files, from: ./mine, to: conf/mine.txt, root: {tmp_path}/engine }}\n"
    site.patches(entry)
    (site.root / "sglang").rename(site.root / "gone")
    site.ok()
    (site.root / "gone").rename(site.root / "sglang")
    assert (tmp_path / "engine/conf/mine.txt").read_text() == "x\n"

    site.patches(entry.replace("/engine", "/nowhere"))
    assert "is not a folder" in site.refused() and "patches.<name>.root" in site.refused()
    site.patches(entry.replace(f"{tmp_path}/engine", "site-packages"))
    assert f"add is applied in {tmp_path}/engine" in site.refused()
    site.patches(entry.replace("add:", "other:"))
    assert "the patch 'add' already changes conf/mine.txt" in site.refused()
    site.patches(entry.replace("add:", "outer:").replace("/engine", "").replace("conf/", "engine/conf/"))
    assert "the patch 'add' already changes engine/conf/mine.txt" in site.refused()
    site.ok("--revert", "add")
    assert list((tmp_path / "engine").iterdir()) == []


def test_what_an_upgrade_took_away_does_not_come_back(site: Site) -> None:
    """Neither by a deploy, of which there is nothing to patch any more, nor by a revert."""
    site.diff({MODEL: CHANGED, "sglang/new.py": "x = 1\n"})
    site.patches(DIFF)
    site.ok()
    (site.root / MODEL).unlink()
    site.write("sglang/version.py", '__version__ = "0.5.10"\n')

    assert f"{MODEL}: no such file on the host" in site.refused()
    assert [action["path"] for action in site.ok("--revert")["patches"][0]["actions"]] == ["sglang/new.py"]
    assert set(site.tree()) == {"sglang/__init__.py", "sglang/version.py"}


def test_two_patches_on_one_file_are_refused_before_anything_is_changed(site: Site) -> None:
    """In one command, and when the other is there already."""
    site.diff({MODEL: CHANGED})
    site.diff({MODEL: "".join(LINES).replace("line 30", "line thirty")}, "other.patch")
    both = DIFF + DIFF.replace("fix", "other")
    site.patches(both)

    assert f"'fix' and 'other' both change {MODEL}" in site.refused(code=2)
    assert next(iter(site.put(Wish(("fix",))).lines)).endswith("undo: hsops deploy --revert fix")
    assert f"the patch 'fix' already changes {MODEL}" in site.refused("other")


def test_what_cannot_be_meant_is_told_with_its_place(site: Site) -> None:
    """Faults of the inventory and of the diff have file, line and column; no host is asked."""
    (site.folder / "mine").mkdir()
    (site.folder / "mine/out").symlink_to("/etc/passwd")
    site.patches(FILES)
    assert "inventory.yaml:" in (said := site.refused(code=4)) and "'out' in it is a link out of the folder" in said
    (site.folder / "mine/out").unlink()
    assert "there is no file in ./mine" in site.refused(code=4)
    site.patches(DIFF)
    assert f"patches.fix.diff: there is no {site.folder}/fix.patch" in site.refused(code=4)
    (site.folder / "fix.patch").write_text("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n")
    assert "fix.patch:3:1: the diff ends inside the hunk" in site.refused(code=4)
    site.patches(DIFF + FILES)
    said = site.refused(code=4)
    assert "fix.patch:3:1:" in said and "there is no file in ./mine" in said
    assert not (site.folder.parent / "state").exists()


def test_a_link_on_the_host_that_leads_out_is_refused(site: Site, tmp_path: Path) -> None:
    """hsops writes nothing outside root, whatever links lie there."""
    (tmp_path / "outside").mkdir()
    (site.root / "sglang/mine").symlink_to(tmp_path / "outside")
    (site.folder / "mine").mkdir()
    (site.folder / "mine/a.py").write_text("x\n")
    site.patches(FILES)

    assert "leads out of" in site.refused()
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_kept_plan_is_carried_out_as_it_was_shown(site: Site) -> None:
    """With modes and bytes of any kind; the diff here may have changed since, the host may not."""
    site.write("sglang/odd.bin", b"a\r\nb\xff\n")
    site.diff({"sglang/odd.bin": b"a\r\nB\xff\n", MODEL: CHANGED}, "fix.patch", "--text")
    site.patches(DIFF)
    kept = site.folder / "plan.json"
    site.put(Wish(check=True, out=str(kept)))
    (site.folder / "fix.patch").write_text("another\n")

    site.put(Wish(plan=str(kept)))

    assert (site.root / "sglang/odd.bin").read_bytes() == b"a\r\nB\xff\n"
    assert (site.root / MODEL).read_text() == CHANGED
    with pytest.raises(StalePlanError):
        site.put(Wish(plan=str(kept)))


def test_launch_wants_the_servers_patches_there(site: Site) -> None:
    """Whatever their kind; one that is no capture adds no flag."""
    site.diff({MODEL: CHANGED})
    site.patches(DIFF)
    looked = bring_up(site.session(), Launch(check=True))
    assert looked.exit_code == 1
    assert [(e["message"], e["fix"]) for e in looked.errors] == [("patch fix is absent", "hsops deploy --server s")]

    site.ok()
    plan = bring_up(site.session(), Launch(check=True)).data["plan"]

    assert list(plan["deployed"]["patches"]) == ["fix"]
    assert "--disable-radix-cache" not in plan["argv"] and plan["dump_dir"] == ""


def test_launch_without_patches_wants_those_gone_that_would_act_all_the_same(site: Site) -> None:
    """A diff lies in files that the server reads; what hs-dump leaves there is inert."""
    site.diff({MODEL: CHANGED})
    site.write(REGISTRY_FILE, REGISTRY)
    site.patches(DIFF + "  hs-dump: { boundaries: [1] }\n")
    site.ok("fix")

    with pytest.raises(HsopsError) as refused:
        bring_up(site.session(), Launch(check=True, without_patches=True))
    site.ok("--revert", "fix")
    bare = bring_up(site.session(), Launch(check=True, without_patches=True))

    assert (refused.value.message, refused.value.fix) == ("patch fix is applied", "hsops deploy --revert fix")
    assert bare.exit_code == 0 and bare.data["plan"]["deployed"]["patches"] == {}
    assert "SGLANG_HS_" not in bare.data["plan"]["shell"]


@pytest.mark.parametrize("first,second", [("real", "link"), ("link", "real"), ("link", "other")])
def test_two_patches_on_one_file_by_a_link_are_refused_before_either_is_applied(
    first: str, second: str, site: Site
) -> None:
    """By different paths; the refusal names both."""
    site.write("real/x.py", "x = 1\n")
    (site.root / "link").symlink_to("real")
    (site.root / "other").symlink_to("link")
    for name, folder in (("one", first), ("two", second)):
        (site.folder / f"{name}.py").write_text(f"{name} = 1\n")
        site.patches(f"  {name}: {{ kind: files, from: ./{name}.py, to: {folder}/x.py }}\n")
        site.ok("--check")
    site.patches(
        f"  one: {{ kind: files, from: ./one.py, to: {first}/x.py }}\n"
        f"  two: {{ kind: files, from: ./two.py, to: {second}/x.py }}\n"
    )

    told = [site.refused(*words, code=2) for words in ((), ("--check",))]

    assert told[0] == told[1] and "the patches 'one' and 'two' both change " in told[0]
    assert f"{first}/x.py" in told[0] and f"{second}/x.py" in told[0]
    assert site.states() == {"one": "absent", "two": "absent"}


def test_a_patch_that_makes_a_file_where_another_needs_a_folder_is_refused_with_it(site: Site) -> None:
    """Each alone is fine; the second would be refused when the first is applied."""
    (site.folder / "mine.py").write_text("x = 1\n")
    site.patches(
        "  one: { kind: files, from: ./mine.py, to: sglang/new }\n"
        "  two: { kind: files, from: ./mine.py, to: sglang/new/x.py }\n"
    )

    told = site.refused(code=2)

    assert "do not go together: sglang/new/x.py needs a folder where sglang/new is a file" in told
    assert site.states() == {"one": "absent", "two": "absent"}


@pytest.mark.parametrize(
    "to,code,said",
    [
        ("thing/x.py", 1, "thing is a file, and thing/x.py would need a folder there"),
        ("folder", 1, "folder is a folder, where a file is expected"),
        ("pipe", 1, "pipe is a named pipe"),
        ("out/x.py", 1, "out/x.py leads out of"),
        ("deep/" * 900 + "x.py", 1, "(4504 bytes) is longer, or a name in it, than the file system takes"),
        ("x" * 256, 4, "has a name of 256 bytes in it: the most is 255"),
    ],
)
def test_a_path_that_cannot_be_is_refused_by_a_check_already(to: str, code: int, said: str, site: Site) -> None:
    """As by a deploy, before anybody is asked, with what helps."""
    site.write("thing", "a file\n")
    site.write("folder/x", "")
    os.mkfifo(site.root / "pipe")
    (site.root / "out").symlink_to("/tmp")
    (site.folder / "mine.py").write_text("x = 1\n")
    site.patches(f"  add: {{ kind: files, from: ./mine.py, to: {to} }}\n")

    told = [site.refused(*words, code=code) for words in (("--check",), ())]

    assert told[0] == told[1] and said in told[0] and ("fix" in told[0] or code == 4), told[0]


def test_a_diff_that_changes_one_file_twice_by_a_link_is_refused_by_a_check_already(site: Site) -> None:
    """And one that removes a link."""
    site.write("real/x.py", "x = 1\n")
    (site.root / "link").symlink_to("real")
    (site.root / "name.py").symlink_to("real/x.py")
    one = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    site.patches(DIFF)
    (site.folder / "fix.patch").write_text(one.format("real/x.py") + one.format("link/x.py"))
    twice = site.refused("--check")
    (site.folder / "fix.patch").write_text("--- a/name.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n")
    gone = site.refused("--check")

    assert "real/x.py and link/x.py are one file, by a link" in twice
    assert "name.py is a link: to remove it would remove the file it leads to" in gone


def test_two_patches_of_one_command_that_look_at_one_file_go_in_together(site: Site) -> None:
    """hs-dump reads a module that a diff changes; the first one's work is no surprise to the second."""
    site.write(OLD_MODULE, "".join(LINES))
    site.write(REGISTRY_FILE, REGISTRY)
    before = site.tree()
    site.diff({OLD_MODULE: CHANGED})
    site.patches(DIFF + "  hs-dump: { boundaries: [1] }\n")

    site.ok()

    assert site.states() == {"fix": "applied", "hs-dump": "applied"}
    site.ok("--revert")
    assert site.tree() == before
