"""The agent as one file: small, self-contained, the same bytes for the same sources."""

from __future__ import annotations

import io
import json
import re
import stat
import zipfile
from functools import cache
from pathlib import Path

AGENT = Path(__file__).parent.parent / "agent"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip cannot hold an older date; a constant makes the bytes reproducible


# Every Python since 2.6 must be able to read this: it is what tells that one is too old.
_MAIN = b"""import sys
if sys.version_info < (3, 10):
    found = "%d.%d.%d" % sys.version_info[:3]
    sys.stdout.write('{"error": {"code": "old-python", "message": "%s", "detail": {}}}\\n' % found)
    sys.exit(1)
import json
class Modules:
    def __init__(self, sources, root):
        self.sources, self.root = sources, root
    def find_spec(self, name, path=None, target=None):
        package = name in ("hsops", "hsops.agent")
        if package or name.rpartition(".")[2] in self.sources and name.startswith("hsops.agent."):
            origin = self.root + "/" + name.replace(".", "/") + ("/__init__.py" if package else ".py")
            return type(__spec__)(name, self, origin=origin, is_package=package)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        origin = module.__spec__.origin
        exec(compile(self.get_source(module.__name__), origin, "exec", dont_inherit=True), module.__dict__)
    def get_source(self, name):
        return self.sources.get(name.rpartition(".")[2], "")
archive = __loader__.archive
sys.meta_path.insert(0, Modules(json.loads(__loader__.get_data(archive + "/modules").decode()), archive))
from hsops.agent.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


_DOCSTRING = re.compile(rb'^( *)"""(?:[^"\\]|"(?!""))*"""(?=\n)', re.MULTILINE)
_COMMENT = re.compile(rb"^ *#.*$", re.MULTILINE)


def bare(source: bytes) -> bytes:
    """A module without docstrings and comments, which a host has no use for: each line keeps its number.

    The host compiles the agent at every call, and a quarter of its bytes would be read for nothing.
    """
    return _COMMENT.sub(b"", _DOCSTRING.sub(lambda doc: doc[1] + b'""' + b"\n" * doc[0].count(b"\n"), source))


@cache
def build(folder: Path = AGENT) -> bytes:
    """The agent as a zipapp; the same sources give the same bytes whenever and wherever (with one zlib).

    Its modules are one member, from which ``__main__`` imports them: compressed together they are a quarter smaller,
    and are read at once instead of one by one.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        modules = {path.stem: bare(path.read_bytes()).decode() for path in sorted(folder.glob("*.py"))}
        members = {"__main__.py": _MAIN, "modules": json.dumps(modules).encode()}
        for name, data in members.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.create_system = 3
            archive.writestr(info, data, compresslevel=9)
    return out.getvalue()
