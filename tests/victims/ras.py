"""Listens as NCCL's RAS does in every rank: with SO_REUSEPORT. Reads a line, says all of a file, closes.

    ras.py PORT FILE

PORT 0 is a free one; the port is told on standard output.
"""

import socket
import sys
from pathlib import Path

with socket.socket() as door:
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    door.bind(("127.0.0.1", int(sys.argv[1])))
    door.listen()
    print(door.getsockname()[1], flush=True)
    while True:
        link, _ = door.accept()
        with link:
            if link.recv(100) == b"verbose status\n":
                link.sendall(Path(sys.argv[2]).read_bytes())
