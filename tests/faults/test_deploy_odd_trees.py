"""Trees that are not as one expects: deployed to and brought back to the byte, or refused with nothing changed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsops.core.errors import AgentError, HsopsError, UnsupportedError
from tests.faults.box import PACKAGE, REGISTRY, SOURCE, Box, furnish

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def assert_there_and_back(box: Box, *, importable: bool = True) -> None:
    """Deploy, see it work, deploy again without a write, revert to the byte."""
    before = box.tree()

    assert box.deploy().needed
    assert box.status() == "applied"
    stamps = box.stamps()
    assert not box.deploy().needed and box.stamps() == stamps
    done = box.imports(SGLANG_HS_DUMP_DIR="/nonexistent", PYTHONDONTWRITEBYTECODE="1")
    assert done.stdout == "None True\n" or not importable, done
    box.revert()

    assert box.tree() == before


def assert_refused(box: Box, said: str, kind: type[HsopsError] = AgentError) -> HsopsError:
    """A clear error, and nothing changed."""
    before = box.tree()

    with pytest.raises(kind) as caught:
        box.deploy()

    assert said in caught.value.message and caught.value.fix, (caught.value.message, caught.value.fix)
    assert box.tree() == before
    assert not list(box.state.rglob("*.json")) and not list(box.state.rglob("*hsops-tmp*"))
    return caught.value


@pytest.mark.parametrize(
    "source",
    [
        SOURCE.replace(b"\n", b"\r\n"),
        SOURCE.rstrip(b"\n"),
        SOURCE.replace(b"\n", b"\r\n").rstrip(b"\r\n"),
        b"\xef\xbb\xbf" + SOURCE,
        b"# -*- coding: latin-1 -*-\n# \xe4\xf6\xfc\n" + SOURCE,
        SOURCE + b"# " + b"x" * 100 + b"\n" * 5_000_000,
        SOURCE + b"\n\x0c\n\n",
    ],
    ids=["CRLF", "no newline", "CRLF, no newline", "BOM", "latin-1", "5 MB", "blank at the end"],
)
def test_a_module_of_odd_bytes_comes_back(source: bytes, box: Box) -> None:
    """The stanza works at its end, and a revert has every byte."""
    box.write(source)

    assert_there_and_back(box)


def test_a_module_that_is_not_utf_8_comes_back(box: Box) -> None:
    """Whatever its bytes are, although no Python can import it."""
    box.write(b"# \xff\xfe\n" + SOURCE)

    assert_there_and_back(box, importable=False)


@pytest.mark.parametrize("source", [b"", SOURCE + b"\0\n"], ids=["empty", "NUL"])
def test_a_module_that_is_no_registry_is_refused(source: bytes, box: Box) -> None:
    """Python could not import it either, or it has no registry."""
    box.write(source)

    assert_refused(box, "cannot be patched", UnsupportedError)


@pytest.mark.parametrize("kind", ["a named pipe", "a folder", "a socket", "a device"])
@pytest.mark.parametrize("where", [REGISTRY, f"{PACKAGE}/config.json"])
def test_what_is_no_file_is_refused_and_never_waited_for(
    kind: str, where: str, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a pipe without a writer would hang for ever."""
    place = box.site / where
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    if kind == "a folder":
        place.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as one:
            monkeypatch.chdir(place.parent)  # a socket's path may have 108 bytes
            one.bind(place.name)
    elif kind == "a named pipe":
        os.mkfifo(place)
    else:
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        os.mknod(place, 0o020600, os.makedev(1, 3))

    assert_refused(box, f"{where} is {kind}, where a file is expected")


def test_a_hard_link_is_cut(box: Box) -> None:
    """uv links packages into its cache: other environments share the inode and keep their bytes, now and later."""
    other = box.folder / "uv-cache.py"
    os.link(box.registry, other)

    assert_there_and_back(box)

    assert other.read_bytes() == SOURCE and other.stat().st_nlink == 1


def test_a_symlinked_site_is_followed(box: Box) -> None:
    """site-packages lies elsewhere."""
    box.site.rename(box.folder / "elsewhere")
    box.site.symlink_to(box.folder / "elsewhere")
    box.site = box.folder / "elsewhere"

    assert_there_and_back(box)


def test_a_symlinked_sglang_is_refused_with_where_it_lies(box: Box) -> None:
    """The payload would be put beside the link's target, where no Python looks."""
    (box.site / "sglang").rename(box.folder / "sglang")
    (box.site / "sglang").symlink_to(box.folder / "sglang")

    error = assert_refused(box, "not on Python's path")

    assert str(box.folder) in error.message


def test_a_symlinked_module_inside_is_followed(box: Box) -> None:
    """The link stays a link, its target is patched and comes back."""
    box.registry.rename(box.registry.with_name("real.py"))
    box.registry.symlink_to("real.py")

    assert_there_and_back(box)

    assert os.readlink(box.registry) == "real.py"


@pytest.mark.parametrize("target", ["outside.py", "registry.py"], ids=["outside", "loop"])
def test_a_symlinked_module_that_leads_out_is_refused(target: str, box: Box) -> None:
    """Another environment's file, or none at all."""
    (box.folder / "outside.py").write_bytes(SOURCE)
    box.registry.unlink()
    box.registry.symlink_to(target if target == "registry.py" else box.folder / target)
    before = box.tree()

    with pytest.raises(HsopsError) as caught:
        box.deploy()

    assert caught.value.fix and "bug" not in caught.value.message
    assert box.tree() == before and (box.folder / "outside.py").read_bytes() == SOURCE


@pytest.mark.parametrize("style", ["path", "finder"])
def test_an_editable_install(style: str, box: Box) -> None:
    """Right where its folder is on Python's path; refused where only an import hook knows it."""
    checkout = box.folder / "checkout/python"
    shutil.rmtree(box.site / "sglang")
    furnish(checkout)
    if style == "path":
        (box.site / "__editable__.sglang.pth").write_text(f"{checkout}\n")
        box.site, box.registry = checkout, checkout / REGISTRY
        assert_there_and_back(box)
        return
    (box.site / "_finder.py").write_text(FINDER.format(root=str(checkout / "sglang")))
    (box.site / "__editable__.sglang.pth").write_text("import _finder\n")
    box.site = checkout

    error = assert_refused(box, "not on Python's path (an editable install?)")

    assert "not editable" in error.fix


FINDER = """\
import importlib.util, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "sglang":
            return importlib.util.spec_from_file_location(
                name, {root!r} + "/__init__.py", submodule_search_locations=[{root!r}])
sys.meta_path.append(Finder)
"""


@root_only
def test_modes_and_owners_are_kept(box: Box) -> None:
    """setuid too, which a change of owner clears, and extended attributes."""
    os.chown(box.registry, 1234, 4321)
    box.registry.chmod(0o6754)
    os.setxattr(box.registry, "user.origin", b"a wheel")
    before = box.registry.stat()

    box.deploy()
    deployed = box.registry.stat()
    attribute = os.getxattr(box.registry, "user.origin")
    box.revert()

    assert (deployed.st_mode, deployed.st_uid, deployed.st_gid) == (before.st_mode, 1234, 4321)
    assert attribute == os.getxattr(box.registry, "user.origin") == b"a wheel"
    assert box.registry.stat().st_mode == before.st_mode and box.registry.stat().st_mtime_ns == before.st_mtime_ns


def test_a_strict_umask_does_not_hide_the_payload(box: Box) -> None:
    """The server may run as another user."""
    box.wrap('umask 077\nexec "$@"')

    box.deploy()

    assert (box.site / PACKAGE).stat().st_mode & 0o777 == 0o755
    assert (box.site / PACKAGE / "config.json").stat().st_mode & 0o777 == 0o644


@root_only
def test_a_read_only_file_system_is_told(box: Box) -> None:
    """Mounted so in a namespace of the agent's own; before anything is tried."""
    box.wrap(f'exec unshare -m sh -c \'mount --bind -o ro {box.site} {box.site} && exec "$@"\' sh "$@"')
    before = box.tree()

    with pytest.raises(HsopsError) as caught:
        box.deploy()

    assert "read-only file system" in caught.value.message and caught.value.fix
    assert box.tree() == before


@root_only
def test_an_immutable_file_is_told(box: Box) -> None:
    """chattr +i: what was done before it is undone, and nothing is remembered."""
    if subprocess.run(["chattr", "+i", box.registry], capture_output=True, check=False).returncode:
        pytest.skip("this file system knows no immutable files")
    try:
        assert_refused(box, "immutable? lsattr tells")
    finally:
        subprocess.run(["chattr", "-i", box.registry], check=True)


@pytest.fixture
def nobody() -> Iterator[Box]:
    """A box of user 65534, who may reach it and whose agent runs as that user."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    candidates = [os.path.realpath(sys.executable), "/usr/bin/python3"]
    check = "import sys, ensurepip; sys.exit(sys.version_info < (3, 10))"
    usable = [p for p in candidates if os.path.exists(p) and _runs([*drop, p, "-c", check])]
    if not usable:
        pytest.skip("no interpreter here that another user may run")
    with tempfile.TemporaryDirectory(prefix="hsops-nobody-") as name:
        folder = Path(name)
        box = Box(folder, python=usable[-1])
        box.wrap(f'chown -R 65534:65534 {box.state}\nexec {" ".join(drop)} "$@"')  # the client is root here
        subprocess.run(["chown", "-R", "65534:65534", folder], check=True)
        yield box


def _runs(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def test_a_user_who_owns_the_tree(nobody: Box) -> None:
    """Without root there is no change of owners to be made, and none is needed."""
    assert_there_and_back(nobody)


@pytest.mark.parametrize(
    "lock, said",
    [
        ("chmod 555 {site} {models}", "not writable for this user"),
        ("chown 0:0 {cache} && chmod 755 {cache}", "__pycache__ is not writable for this user"),
        ("chown 0:65534 {registry} && chmod 664 {registry}", "which this user cannot give a new file"),
    ],
    ids=["read-only tree", "__pycache__", "another's file"],
)
def test_what_a_user_may_not_do_is_told_before(lock: str, said: str, nobody: Box) -> None:
    """A copy of somebody else's file would belong to us: refused like a folder that may not be written."""
    cache = nobody.registry.parent / "__pycache__"
    cache.mkdir()
    (cache / "registry.cpython-311.pyc").write_bytes(b"byte code")
    names = {"site": nobody.site, "models": nobody.registry.parent, "cache": cache, "registry": nobody.registry}
    subprocess.run(["sh", "-c", lock.format_map(names)], check=True)
    before = nobody.tree()

    with pytest.raises(HsopsError) as caught:
        nobody.deploy()

    assert said in caught.value.message and caught.value.fix
    assert nobody.tree() == before


@pytest.mark.parametrize("prefix", [False, True], ids=["__pycache__", "PYTHONPYCACHEPREFIX"])
@pytest.mark.parametrize("ahead", [0, 86400], ids=["now", "clock set back"])
def test_python_never_runs_byte_code_of_the_other_version(prefix: bool, ahead: int, box: Box) -> None:
    """Not even when both have the same length and are made in the same second, or the clock was set back."""
    env = {"PYTHONPYCACHEPREFIX": str(box.folder / "pyc")} if prefix else {}

    def seen() -> str:
        return box.imports(f"{PACKAGE}.strategy", **env).stdout.split()[0]

    box.deploy()
    strategy = box.site / f"{PACKAGE}/strategy.py"
    plain = strategy.read_bytes()
    strategy.write_bytes(plain + b"\nx = 1\n")  # somebody's edit, which --force replaces by one of the same length
    now = strategy.stat().st_mtime_ns + ahead * 10**9
    os.utime(strategy, ns=(now, now))
    first = seen()
    box.deploy(force=True)
    second = seen()
    box.revert()

    assert (first, second) == ("1", "None")


def test_state_on_another_file_system(tmp_path: Path) -> None:
    """Nothing is renamed from one to the other."""
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("one file system here")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hsops-state-") as state:
        assert_there_and_back(Box(tmp_path, state=Path(state)))


@pytest.fixture
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Box, Path]]:
    """A box whose site or state lies on a file system with 40 KiB left; the file that fills it."""
    box, full = Box(tmp_path), tmp_path / "full"
    full.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "hsops-test", str(full)], check=True)
    try:
        if request.param == "site":
            subprocess.run(["cp", "-a", f"{box.site}/.", str(full)], check=True)
            shutil.rmtree(box.site)
            box.site.symlink_to(full)
            box.site, box.registry = full, full / REGISTRY
        else:
            box.state = full / "state"
            box.status()  # the agent is there already
        filler = full / "filler"
        filler.write_bytes(b"x" * (os.statvfs(full).f_bavail * 4096 - 40 * 1024))
        os.utime(filler, ns=(0, 0))
        yield box, filler
    finally:
        subprocess.run(["umount", str(full)], check=True)


@pytest.mark.parametrize("small", ["site", "state"], indirect=True)
def test_a_full_disk_is_told_and_nothing_is_left(small: tuple[Box, Path]) -> None:
    """In the tree or in hsops' own folder; with room again it works."""
    box, filler = small
    before = box.tree()

    with pytest.raises(AgentError) as caught:
        box.deploy()
    after = box.tree()
    filler.unlink()
    box.deploy()

    assert "No space left" in caught.value.message and "room" in caught.value.fix
    assert after == before
    assert box.status() == "applied"
