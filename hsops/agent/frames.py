"""The wire of ``dumps-send``: files as frames on standard output. Packed on the host, parsed by ``hsops.fetch``.

The stream starts with ``MAGIC``. A frame is a header ``(kind, index, offset, length)`` and ``length`` bytes. ``index``
counts the files of the request from 0, so that the host never names a file. No kind is ``{``: an error line of
the agent, before the magic or instead of a frame, is told by its first byte.
"""

import struct

MAGIC = b"hsops-frames 1\n"
HEADER = struct.Struct(">cIQI")
DATA = b"D"  # offset: position in the file; the bytes
END = b"E"  # the file was sent to its end and did not change meanwhile; JSON {"ino", "mtime_ns", "sum"}
WHOLE = b"W"  # a small file; offset: its mtime_ns; length: its bytes, after WHOLE_HEAD and a checksum if one was wanted
FAULT = b"F"  # the file will not be sent (further); JSON {"code": "missing" | "changed" | "unreadable", "message"}
DONE = b"Z"  # nothing more will come
ERROR = b"{"

WHOLE_HEAD = struct.Struct(">QB")  # inode; bytes of the checksum
SMALL = 64 << 10  # bytes of a file that is sent so: one frame, one read
LARGEST = 4 << 20  # of one frame's bytes: what must be padded when a file shrinks under the sender


def pack(kind: bytes, index: int = 0, offset: int = 0, length: int = 0) -> bytes:
    """One header."""
    return HEADER.pack(kind, index, offset, length)
