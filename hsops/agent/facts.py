"""What this host is: interpreter, SGLang, space."""

import contextlib
import glob
import importlib.util
import json
import os
import re
import sys
import time
from typing import Any

MINIMUM = (3, 10)
_READERS = ("srt/environ.py", "srt/utils/*.py", "srt/utils.py", "**/*.py")  # of variables; the rest takes seconds
_VARIABLE = re.compile(rb"\bSGL(?:ANG)?_[A-Z0-9_]*[A-Z0-9]\b")
_FIELD = re.compile(r"^    (SGL\w+) *(?::[^=\n]+)?= *\(?\s*Env(Bool|Int|Float)", re.MULTILINE)


def hello(params: "dict[str, Any]") -> "dict[str, Any]":
    """Facts about the host. ``params``: optional ``dumps``, a folder whose free bytes are wanted."""
    import platform  # 4 ms, for this verb only

    found = {
        "hostname": os.uname().nodename,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "python_ok": sys.version_info[:2] >= MINIMUM,
        "executable": sys.executable,
        "user": os.environ.get("USER") or str(os.getuid()),
        "cpus": os.cpu_count(),
        "sglang": sglang(),
        "packages": {name: version_of(name) for name in ("torch", "psutil", "py-spy")},
    }
    if params.get("dumps"):
        found["dumps"] = space(params["dumps"])
    return found


def clock(_params: "dict[str, Any]") -> "dict[str, float]":
    """``time``: the host's clock, in seconds since the epoch; ``utc_offset``: of its time zone, in seconds."""
    return {"time": time.time(), "utc_offset": time.localtime().tm_gmtoff}


def model(params: "dict[str, Any]") -> "dict[str, Any]":
    """What a model's ``config.json`` says. ``params``: ``path``; ``modules``: whether those are wanted too.

    Result: ``vocab_size``, None when it is not told: of a model with several parts (Kimi-K2.5) the language part's.
    ``architectures``: the names of its classes. ``modules``: of SGLang, those that define one of them.
    """
    try:
        with open(os.path.join(os.path.expanduser(str(params["path"])), "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        vocabulary = (config.get("text_config") or config).get("vocab_size")
        classes = [str(name) for name in config.get("architectures") or ()]
    except (OSError, ValueError, AttributeError, TypeError):  # a hub id, or a folder of another kind
        return {"vocab_size": None, "architectures": [], "modules": []}
    modules = _defining(classes) if params.get("modules") else []
    return {"vocab_size": vocabulary, "architectures": classes, "modules": modules}


def _defining(classes: "list[str]") -> "list[str]":
    """The modules of SGLang's models that define one of these classes."""
    root, found = sglang()["root"], []
    if not root or not classes:
        return []
    wanted = re.compile("|".join(rf"^class {re.escape(name)}\b" for name in classes), re.MULTILINE)
    for path in glob.glob(os.path.join(root, "srt", "models", "*.py")):
        with open(path, encoding="utf-8", errors="replace") as file:
            if wanted.search(file.read()):
                found.append(f"sglang.srt.models.{os.path.basename(path)[:-3]}")
    return sorted(found)


def sglang() -> "dict[str, Any]":
    """Where SGLang is installed and its version, without importing it; ``root`` is None when there is none."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        return {"root": None, "site": None, "version": None}
    root = os.path.realpath(next(iter(spec.submodule_search_locations)))
    site = os.path.dirname(root)
    version = _version_beside(site) or version_of("sglang") or _version_file(root)
    return {"root": root, "site": site, "version": version}


def flags(site: str, wanted: "list[str]") -> "dict[str, bool]":
    """Which of SGLang's command-line flags (without dashes) its code has: spelt out, or made of a field (0.5.14+)."""
    if not wanted:
        return {}
    srt, known = os.path.join(site, "sglang", "srt"), set()
    for path in (os.path.join(srt, "server_args.py"), *glob.glob(os.path.join(srt, "arg_groups", "fields", "*.py"))):
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except OSError:
            continue
        known.update(re.findall(r"""["']--([a-z0-9][a-z0-9-]*)["']""", text))
        known.update(name.replace("_", "-") for name in re.findall(r"^    ([a-z]\w*): A\[", text, re.MULTILINE))
    return {flag: flag in known for flag in wanted}


def environment(params: "dict[str, Any]") -> "dict[str, Any]":
    """What values of environment variables may speak of. ``params``: ``wanted``, the variables.

    ``interfaces`` of the network, ``cards``: InfiniBand or RoCE devices, ``names``: variables that SGLang's code reads,
    all of them unless those ``wanted`` were found before. ``kinds``: Bool, Int or Float of those ``wanted``.
    """
    root, names = sglang()["root"], set[bytes]()
    wanted = {name.encode() for name in params["wanted"] if name.startswith(("SGLANG_", "SGL_"))}
    for pattern in _READERS if root else ():
        for path in glob.iglob(os.path.join(root, pattern), recursive=True):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                names.update(_VARIABLE.findall(file.read()))
        if wanted <= names:
            break
    folders = {"interfaces": "/sys/class/net", "cards": "/sys/class/infiniband"}
    found = {name: sorted(os.listdir(path)) if os.path.isdir(path) else [] for name, path in folders.items()}
    known = kinds(root) if wanted and root else {}
    told = {name: known[name] for name in params["wanted"] if name in known}
    return {**found, "names": sorted(name.decode() for name in names), "kinds": told}


def kinds(root: str) -> "dict[str, str]":
    """Bool, Int or Float of the variables that SGLang declares as such, where its code declares them."""
    try:
        with open(os.path.join(root, "srt", "environ.py"), encoding="utf-8") as file:
            return dict(_FIELD.findall(file.read()))
    except (OSError, ValueError):
        return {}


def machine() -> "dict[str, str]":
    """What tells this machine, or container, from another: ``id`` (of /etc/machine-id; may be empty) and ``name``."""
    try:
        with open("/etc/machine-id", encoding="ascii") as file:
            told = file.read().strip()
    except (OSError, ValueError):
        told = ""
    return {"id": told, "name": os.uname().nodename}


def version_of(distribution: str) -> "str | None":
    """The installed version of a distribution, or None."""
    import importlib.metadata  # 25 ms, a quarter of a verb

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def space(folder: str) -> "dict[str, Any]":
    """Free and total bytes of the file system that holds ``folder`` (or its nearest existing parent)."""
    path = os.path.abspath(os.path.expanduser(folder))
    while not os.path.exists(path):
        path = os.path.dirname(path)
    stat = os.statvfs(path)
    return {"path": folder, "free": stat.f_bavail * stat.f_frsize, "total": stat.f_blocks * stat.f_frsize}


def _version_beside(site: str) -> "str | None":
    """What the one metadata folder beside SGLang says: as ``version_of``, which loads much for it."""
    found = glob.glob(os.path.join(glob.escape(site), "sglang-*.dist-info", "METADATA"))
    if len(found) != 1:
        return None
    try:
        with open(found[0], encoding="utf-8", errors="replace") as file:
            head = file.read(4096).partition("\n\n")[0]
    except OSError:
        return None
    match = re.search(r"^Version: *(\S+)$", head, re.MULTILINE)
    return match.group(1) if match else None


def _version_file(root: str) -> "str | None":
    """``sglang/version.py`` or ``_version.py``, for an unpacked tree without metadata."""
    for name in ("_version.py", "version.py"):
        try:
            with open(os.path.join(root, name), encoding="utf-8") as file:
                match = re.search(r"""__version__\s*=\s*(?:version\s*=\s*)?["']([^"']+)["']""", file.read())
        except OSError:
            continue
        if match:
            return match.group(1)
    return None
