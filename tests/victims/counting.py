"""A server that counts: ``counting.py --port PORT ...`` writes numbered lines until its run directory has ``finish``.

Everything asked of PORT is 503 until the run directory has ``healthy``. Each line goes straight to the log.
"""

import http.server
import os
import sys
import threading
import time

PAUSE_S = 0.002


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        self.send_response(200 if os.path.exists("healthy") else 503)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Only the count is in the log."""


def main(words: list[str]) -> None:
    if "--port" in words:
        port = int(words[words.index("--port") + 1])
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    number = 0
    while not os.path.exists("finish"):
        os.write(1, b"line %09d %s\n" % (number, os.urandom(12).hex().encode()))
        number += 1
        time.sleep(PAUSE_S)
    os.write(1, b"%d lines" % number)


if __name__ == "__main__":
    main(sys.argv[1:])
