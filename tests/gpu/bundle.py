"""The bundle for a GPU machine that reaches no package index: SGLang with CUDA kernels, as one archive.

    python tests/gpu/bundle.py [FOLDER]

Downloads what ``packages.txt`` pins for CPython 3.12 on x86-64, leaves out what a Hopper card and this test do not need
(kernels for other cards, FlashAttention, 1.1 GB of 1.2) and packs it as ``site.tar.xz``. FlashInfer, whose fused
all-reduce two ranks need and nothing else, is an archive of its own, built on that machine when it is first used. So is
Debian's strace, where ``apt-get`` is there to fetch it, and OpenSSH as it is installed here with the Python packages
that hsops needs for it, so that a machine without sshd can be its own host. Prints the sizes; fails when all are larger
than ``LIMIT``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
LIMIT = 56 << 20  # bytes: what fits beside the repository in one carry of 64 MiB
FLASHINFER = "flashinfer_python==0.6.11.post1"  # what sglang 0.5.12.post1 asks for
TOOLS = ("strace", "libunwind8")
SSH = ("sshd", "ssh", "ssh-keygen")
SSH_PACKAGES = (
    "paramiko",
    "fabric",
    "invoke",
    "bcrypt",
    "PyNaCl",
    "cryptography",
    "Deprecated",
    "decorator",
    "backports.zstd",
)
OF_GLIBC = ("libc.so", "libresolv.so", "libm.so", "libpthread.so", "libdl.so", "librt.so")  # the machine's own
CONSTRAINTS = HERE.parents[1] / "constraints.txt"
SBIN = "/usr/sbin:/usr/bin:/sbin:/bin"
PLATFORMS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
LEFT_OUT = (
    "sgl_kernel/flash_ops",  # FlashAttention: 1 GB
    "sgl_kernel/flashmla_ops",
    "sgl_kernel/sm100/",  # for Blackwell
    "lib/",  # mscclpp
    "include/",
    "_mscclpp",
    "sglang/multimodal_gen/",
    "sglang/test/",
)


def main(folder: Path) -> None:
    """Download, choose, pack."""
    folder.mkdir(parents=True, exist_ok=True)
    site = _archive(folder / "site.tar.xz", ("--requirement", str(HERE / "packages.txt")))
    flashinfer = _archive(folder / "flashinfer.tar.xz", (FLASHINFER,))
    tools = _tools(folder / "tools.tar.xz") if shutil.which("apt-get") else 0
    ssh = _ssh(folder / "ssh.tar.xz") if shutil.which("apt-get") and shutil.which("sshd", path=SBIN) else 0
    if site + flashinfer + tools + ssh > LIMIT:
        sys.exit(f"larger than {LIMIT / 2**20:.0f} MiB: leave out more (LEFT_OUT)")


def _archive(archive: Path, wanted: tuple[str, ...]) -> int:
    """Packages of pip's arguments ``wanted``, unpacked side by side and packed again; returns the archive's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        wheels, site = Path(folder, "wheels"), Path(folder, "site")
        _download(wheels, wanted)
        for wheel in sorted(wheels.glob("*.whl")):
            _unpack(wheel, site)
        _pack(site, archive)
        unpacked = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    size = archive.stat().st_size
    print(f"{archive}: {size / 2**20:.1f} MiB, unpacked {unpacked / 2**20:.0f} MiB")
    return size


def _tools(archive: Path) -> int:
    """strace and the libraries that it needs beside libc, as one folder; returns the archive's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-q", *TOOLS], cwd=folder, check=True, timeout=300)
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, f"{folder}/all"], check=True, timeout=60)
        wanted = [*Path(folder, "all/usr/bin").glob("strace"), *Path(folder, "all/usr/lib").glob("*/lib*.so*")]
        with tarfile.open(archive, "w:xz") as packed:
            for path in sorted(wanted):
                packed.add(path, f"tools/{path.name}", filter=_plain)
    size = archive.stat().st_size
    print(f"{archive}: {size / 2**20:.1f} MiB")
    return size


def _ssh(archive: Path) -> int:
    """sshd and its kin with every library beside glibc's, found relative to themselves; returns the archive's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        wheels, whole = Path(folder, "wheels"), Path(folder, "ssh")
        _download(wheels, ("--constraint", str(CONSTRAINTS), *SSH_PACKAGES))
        for wheel in sorted(wheels.glob("*.whl")):
            _unpack(wheel, whole / "site")
        subprocess.run(["apt-get", "download", "-q", "patchelf"], cwd=folder, check=True, timeout=300)
        (package,) = Path(folder).glob("patchelf*.deb")
        subprocess.run(["dpkg", "-x", package, f"{folder}/patchelf"], check=True, timeout=60)
        for name in SSH:
            _relocate(Path(str(shutil.which(name, path=SBIN))), whole, f"{folder}/patchelf/usr/bin/patchelf")
        with tarfile.open(archive, "w:xz", preset=6) as packed:
            packed.add(whole, ".", filter=_plain)
    size = archive.stat().st_size
    print(f"{archive}: {size / 2**20:.1f} MiB")
    return size


def _relocate(program: Path, whole: Path, patchelf: str) -> None:
    """A program into ``bin``, its libraries into ``lib``, by RPATH: sshd clears the environment it was started in."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True, timeout=60).stdout
    words = [line.split() for line in said.splitlines() if "=> /" in line]
    libraries = [Path(word[2]) for word in words if not word[0].startswith(OF_GLIBC)]
    for source, target, way in (
        (program, whole / "bin" / program.name, "$ORIGIN/../lib"),
        *((path, whole / "lib" / path.name, "$ORIGIN") for path in libraries),
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(source, target)
            subprocess.run([patchelf, "--force-rpath", "--set-rpath", way, target], check=True, timeout=60)


def _download(folder: Path, wanted: tuple[str, ...]) -> None:
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", *platforms),
            *("--dest", str(folder), *wanted),
        ],
        check=True,
        timeout=900,
    )


def _unpack(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.startswith(LEFT_OUT)]
        archive.extractall(site, names)


def _pack(site: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:xz", preset=6) as packed:
        for path in _sorted_files(site):
            packed.add(path, str(path.relative_to(site)), recursive=False, filter=_plain)


def _sorted_files(site: Path) -> Iterator[Path]:
    """By suffix: like compresses better beside like."""
    return iter(sorted((p for p in site.rglob("*") if p.is_file()), key=lambda p: (p.suffix, str(p))))


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(*(sys.argv[1:2] or [".gpu"])))
