"""The agent as one file: small, self-contained, the same bytes for the same sources."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

AGENT = Path(__file__).parent.parent / "agent"
SIZE = 80 << 10  # 72 KiB were full when a diagnosis learned to ask NCCL, and who holds GPU memory
"""Bytes of the file, filled up with zeros: a whole one is known by its length before it is made here."""
# Neighbours that are alike compress better, by three kilobytes in all: each next one is that which the 32 KiB before it
# tell most of. Any order is right, and a module that is not named comes last.
_ORDER = """
__init__ doctor_gpus probe_gpus options patch_shapes patch_plan gpus patch_store patch_view patch patch_script
patch_owners patch_site probe_files lock full_disk patch_guard patch_copy aside evict audit leases lock_verbs proof
rundir runs strangers stop orphans facts prune __main__ follow slurm doctor logs jit_cache probe_stacks serve dumps
probe probe_faults probe_census tree vitals send probe_tools pulse probe_sample probe_host probe_strace job ending
direct protocol oom frames claims probe_http meet restart procs supervisor relay doctor_pci
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip cannot hold an older date; a constant makes the bytes reproducible


# Every Python since 2.6 must be able to read this: it is what tells that one is too old.
# Compiling the agent takes longer than all it does in a quick verb, so byte code is kept beside it, for each Python.
_MAIN = b"""import sys
if sys.version_info < (3, 10):
    found = "%d.%d.%d" % sys.version_info[:3]
    sys.stdout.write('{"error": {"code": "old-python", "message": "%s", "detail": {}}}\\n' % found)
    sys.exit(1)
import marshal
import os
import zlib
from importlib.util import MAGIC_NUMBER
class Modules:
    def __init__(self, archive, read):
        self.root, self.read, self.texts, self.kept = archive, read, None, True
        self.file = "%s.%s.code" % (archive, sys.implementation.cache_tag)
        self.codes = self.load()
    def load(self):
        try:
            with open(self.file, "rb") as file:
                data = file.read()
        except OSError:
            return {}
        return marshal.loads(data[20:]) if data[:20] == self.seal(data[20:]) else {}
    def seal(self, data):
        return MAGIC_NUMBER + ("%08x%08x" % (zlib.crc32(data), len(data))).encode()
    def keep(self):
        if self.kept:
            return
        self.kept, data = True, marshal.dumps(self.codes)
        part = "%s.%d" % (self.file, os.getpid())
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(self.seal(data) + data)
            os.replace(part, self.file)
        except OSError:
            try:
                os.unlink(part)
            except OSError:
                pass
    def sources(self):
        if self.texts is None:
            members = self.read(self.root + "/modules").decode().split("\\0")
            self.texts = dict(member.split("\\n", 1) for member in members)
        return self.texts
    def find_spec(self, name, path=None, target=None):
        package, last = name in ("hsops", "hsops.agent"), name.rpartition(".")[2]
        if package or name.startswith("hsops.agent.") and (name in self.codes or last in self.sources()):
            origin = self.root + "/" + name.replace(".", "/") + ("/__init__.py" if package else ".py")
            return type(__spec__)(name, self, origin=origin, is_package=package)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        if name not in self.codes:
            self.kept = False
            origin = module.__spec__.origin
            self.codes[name] = compile(self.get_source(name), origin, "exec", dont_inherit=True)
        exec(self.codes[name], module.__dict__)
    def get_source(self, name):
        return self.sources().get(name.rpartition(".")[2], "")
sys.meta_path.insert(0, Modules(__loader__.archive, __loader__.get_data))
from hsops.agent.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


_DOCSTRING = re.compile(rb'^( *)"""(?:[^"\\]|"(?!""))*"""(?=\n)', re.MULTILINE)
_DEF = re.compile(rb"^ *def .*$", re.MULTILINE)
_TYPE = re.compile(rb'\b(?!lambda:)(\w+): (?:"[^"\n]*"|[\w.]+(?:\[[\w., \[\]]*\])?(?: \| None)?)(?= ?[,)=])')
_VARIABLE = re.compile(
    rb"^( {8,}(?!else:|try:|finally:)(?:self\.)?\w+): [^=\n]+ = ", re.MULTILINE
)  # inside of functions
_RETURNS = re.compile(rb"^( *(?:def \w+\(.*\)|\))) -> .*:$", re.MULTILINE)


def bare(source: bytes) -> bytes:
    """A module without what a host has no use for: docstrings, comments, types in functions, wide indents.

    Each line keeps its number.

    A quarter of its bytes would be sent and read for nothing.
    """
    source = _DOCSTRING.sub(lambda doc: doc[1] + b'""' + b"\n" * doc[0].count(b"\n"), source)
    source = _VARIABLE.sub(rb"\1 = ", _RETURNS.sub(rb"\1:", source))
    return _shallow(_DEF.sub(lambda line: _TYPE.sub(rb"\1", line[0]), source))


def _shallow(source: bytes) -> bytes:
    """Without comments, and indented by one blank instead of four, but for the inside of strings."""
    import io
    import tokenize  # only a host without the agent needs it

    strings, lines = set[int](), source.split(b"\n")
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT:
            row = token.start[0] - 1
            lines[row] = lines[row].removesuffix(token.string.encode()).rstrip(b" ")
        elif tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE"):
            strings.update(range(token.start[0] + 1, token.end[0] + 1))
    for i, line in enumerate(lines):
        if i + 1 not in strings:
            text = line.lstrip(b" ")
            lines[i] = b" " * ((len(line) - len(text)) // 4) + text
    return b"\n".join(lines)


@cache
def identity(folder: Path = AGENT) -> str:
    """16 hex digits over all that the agent is made of, without the time that making it takes."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(folder.glob("*.py")):
        data = path.read_bytes()
        digest.update(f"\0{path.name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:16]


@cache
def build(folder: Path = AGENT) -> bytes:
    """The agent as a zipapp; the same sources give the same bytes whenever and wherever (with one zlib).

    Its modules are one member, from which ``__main__`` imports them: compressed together they are a quarter smaller,
    and are read at once instead of one by one.
    """
    places = {name: i for i, name in enumerate(_ORDER.split())}
    paths = sorted(folder.glob("*.py"), key=lambda path: (places.get(path.stem, len(places)), path.stem))
    modules = [path.stem.encode() + b"\n" + bare(path.read_bytes()) for path in paths]
    members = {"__main__.py": _MAIN, "modules": b"\0".join(modules)}
    return _packed(members, b"\0" * (SIZE - len(_packed(members, b""))))


def _packed(members: dict[str, bytes], rest: bytes) -> bytes:
    import io  # these load many others, and only a host without the agent needs them
    import stat
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.comment = rest
        for name, data in members.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.create_system = 3
            archive.writestr(info, data, compresslevel=9)
    return out.getvalue()
