"""A server that captures, and misbehaves as it is told: ``serving.py PORT [WORD=N ...]``.

It says hello for one rank, and makes a dump for each ``/generate`` as the capture would. Each is a line of ``asked`` in
its dump folder, and ``N`` counts them from 1. ``die=N`` ends it at that one without a dump, ``die-done=N`` after the
dump and before the answer, ``hang=N`` answers nothing from there on, and /health is 503. ``busy=N``, ``breaks=N``: the
first N are refused with 503 and 500. ``bad=ID``: that one's dump fails each time. ``refuse=ID``: that one is answered
with 400, as is one that is under way already (SGLang from 0.5.10 on does that). ``cut=N``: the connection of that one
breaks, and its dump is made once it is asked for again. ``poison=ID`` ends it each time. ``tokens=N``: what
``/server_info`` says that it holds.
``pause=MS`` before each answer; ``holds=FILE``: until there is such a file, but for the first ``free=N``. When it dies
it leaves ``died``; ``lingers=MS``: its port is closed that long before, and nobody is answered. The most tokens that
were ever asked for at once are in ``most``, and ``probes`` has a point for each
/health.
"""

import http.server
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from hsops.core.dumps import MANIFEST
from tests.dump_maker import make

FOLDER = Path(os.environ["SGLANG_HS_DUMP_DIR"])
WISHES = dict(word.split("=") for word in sys.argv[2:])
LOCK = threading.Lock()
UNDER_WAY: "set[str]" = set()  # request ids


class State:
    asked = inside = most = 0
    hung = False


def wish(name: str) -> int:
    return int(WISHES.get(name, 0))


def write(body: "dict[str, object]") -> None:
    """One dump at a time, as a writer does it."""
    with LOCK:
        make(FOLDER, str(body["rid"]).removeprefix("hs-"), body["input_ids"])  # type: ignore[arg-type]


def die() -> None:
    """Not in the middle of a manifest's line: that the capture's own writer never leaves one is tested elsewhere."""
    with LOCK:
        if "lingers" in WISHES:
            server.socket.close()
            time.sleep(wish("lingers") / 1000)
        (FOLDER / "died").touch()
        os._exit(9)


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    rid = ""  # of what this connection has under way

    def do_GET(self) -> None:
        if self.path == "/health":
            with LOCK, (FOLDER / "probes").open("a") as probes:
                probes.write(".")
            self._answer(503 if State.hung else 200, {})
        else:
            self._answer(200, {"max_req_input_len": 400, "max_total_num_tokens": wish("tokens") or 4000})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not str(body.get("rid")).startswith("hs-"):
            self._answer(200, {})
            return
        number = self._count(body, len(body["input_ids"]))
        if number == 0:
            self._answer(400, {"error": {"message": f"Duplicate request ID detected: {body['rid']}"}})
            return
        time.sleep(wish("pause") / 1000)
        while "holds" in WISHES and number > wish("free") and not Path(WISHES["holds"]).exists():
            time.sleep(0.01)
        try:
            self._generate(body, number)
        finally:
            with LOCK:
                State.inside -= len(body["input_ids"])
                UNDER_WAY.discard(self.rid)
                self.rid = ""

    def _count(self, body: "dict[str, str]", tokens: int) -> int:
        """Its number; 0 for one that is under way already."""
        with LOCK:
            if body["rid"] in UNDER_WAY:
                (FOLDER / "again").touch()
                return 0
            self.rid = body["rid"]
            UNDER_WAY.add(self.rid)
            State.asked += 1
            State.inside += tokens
            State.most = max(State.most, State.inside)
            (FOLDER / "most").write_text(str(State.most))
            with (FOLDER / "asked").open("a") as asked:
                asked.write(body["rid"].removeprefix("hs-") + "\n")
            return State.asked

    def _generate(self, body: "dict[str, object]", number: int) -> None:
        if number == wish("die") or body["rid"] == f"hs-{WISHES.get('poison')}":
            die()
        if wish("hang") and number >= wish("hang"):
            State.hung = True
            threading.Event().wait()
        if number == wish("cut"):
            self.connection.shutdown(socket.SHUT_RDWR)
            while not (FOLDER / "again").exists():
                time.sleep(0.01)
            write(body)
            self.close_connection = True
        elif number <= wish("busy"):
            self._answer(503, {"error": {"message": "The request queue is full."}})
        elif number <= wish("breaks"):
            self._answer(500, {"error": {"message": "for a moment"}})
        elif body["rid"] == f"hs-{WISHES.get('refuse')}":
            self._answer(400, {"error": {"message": "never this one"}})
        else:
            self._capture(body)
            if number == wish("die-done"):
                die()
            self._answer(200, {})

    def _capture(self, body: "dict[str, object]") -> None:
        if body["rid"] == f"hs-{WISHES.get('bad')}":
            self._fail(str(WISHES["bad"]))
        else:
            write(body)

    def _fail(self, id_: str) -> None:
        line = {"id": id_, "status": "failed", "tokens": 0, "boundaries": [1, 3], "final": "pre-norm", "dtype": "F32"}
        line |= {
            "hidden_size": 8,
            "bytes": 0,
            "checksum": "",
            "reason": "a row is lost",
            "run": "",
            "patch": "",
            "sglang": "",
        }
        with LOCK, (FOLDER / MANIFEST).open("a") as manifest:
            manifest.write(json.dumps(line) + "\n")

    def _answer(self, status: int, answer: object) -> None:
        data = json.dumps(answer).encode()
        with LOCK:
            UNDER_WAY.discard(self.rid)  # before the client can ask for it again
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing: the log is for what matters."""


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer)
    hello = FOLDER / "hello" / f"{os.environ['SGLANG_HS_RUN']}.{os.getpid()}.json"
    hello.parent.mkdir(parents=True, exist_ok=True)
    hello.write_text(json.dumps({"rank": 0, "ok": True}))
    print("up", flush=True)
    server.serve_forever()
