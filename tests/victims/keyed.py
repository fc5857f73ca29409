"""A server with keys, and with SGLang's rules for them: ``keyed.py PORT --api-key KEY [--admin-api-key KEY] ...``.

It says hello for one rank and writes a dump for each ``/generate`` of the data set, as the capture would; one of a
check fails. Every request that is let in is a line of ``asked`` in its dump folder.
"""

import http.server
import json
import os
import sys
from pathlib import Path

from hsops.core.secret import value_of
from tests.dump_maker import make

FOLDER = Path(os.environ["SGLANG_HS_DUMP_DIR"])


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._let_in({"max_req_input_len": 400, "vocab_size": 256})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ours, check = (str(body.get("rid")).startswith(prefix) for prefix in ("hs-", "hscheck-"))
        if self._let_in({}, fails=self.path == "/generate" and check) and ours:
            make(FOLDER, body["rid"].removeprefix("hs-"), body["input_ids"])

    def _let_in(self, answer: object, *, fails: bool = False) -> bool:
        key = value_of(sys.argv, "--api-key")
        if self.path == "/abort_request":
            key = value_of(sys.argv, "--admin-api-key") or key
        welcome = self.path == "/health" or self.headers["Authorization"] == f"Bearer {key}"
        if welcome:
            with (FOLDER / "asked").open("a") as asked:
                asked.write(f"{self.path}\n")
        data = json.dumps(answer if welcome else {"error": "Unauthorized"}).encode()
        self.send_response((500 if fails else 200) if welcome else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        return welcome


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer)
    hello = FOLDER / "hello" / f"{os.environ['SGLANG_HS_RUN']}.{os.getpid()}.json"
    hello.parent.mkdir()
    hello.write_text(json.dumps({"rank": 0, "ok": True}))
    print("up", flush=True)
    server.serve_forever()
