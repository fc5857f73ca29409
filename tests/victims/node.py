"""A node of a server over several hosts, for a practice host's ``sglang/launch_server.py``: says SGLang's lines, starts
its ranks, and on node 0 answers HTTP once all ranks have met at ``--dist-init-addr``.

What it does besides stands in ``NODE``, words with the node that they are for: ``1:die`` (before it meets the others),
``1:die-later`` (when all have met), ``1:hold`` (it meets them once there is the file ``GO``).
"""

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

OPTIONS = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))


def say(text: str, rank: str = "") -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    os.write(1, f"[{stamp}{f' {rank}' if rank else ''}] {text}\n".encode())


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))  # ranks and all, as SGLang ends
    node, nodes, tp = (int(OPTIONS[f"--{name}"]) for name in ("node-rank", "nnodes", "tp-size"))
    wishes = [word.partition(":")[2] for word in os.environ.get("NODE", "").split() if word.startswith(f"{node}:")]
    say(
        f"server_args=ServerArgs(tp_size={tp}, nnodes={nodes}, node_rank={node}, device='cpu', disable_cuda_graph=True)"
    )
    ranks = range(node * tp // nodes, (node + 1) * tp // nodes)
    for rank in ranks:
        home = {**os.environ, "PYTHONHOME": sys.base_prefix}
        words = [f"sglang::scheduler_TP{rank}", "-c", "import time; time.sleep(600)"]
        subprocess.Popen(words, executable=sys.executable, env=home)
        say("Init torch distributed begin.", f"TP{rank}")
        hello(rank)
    if "die" in wishes:
        say("Scheduler hit an exception: Traceback (most recent call last):", f"TP{ranks[0]}")
        os.write(1, b'  File "x.py", line 1, in f\nRuntimeError: no such device\n')
        end()
    while "hold" in wishes and not Path(os.environ["GO"]).exists():
        time.sleep(0.05)
    meet(node, nodes)
    for rank in ranks:
        for line in ("Init torch distributed ends.", "Load weight begin.", "Load weight end.", "Memory pool end."):
            say(line, f"TP{rank}")
    if "die-later" in wishes:
        end()
    serve(node)


def end() -> None:
    """With the exit code of a failure, and nothing left behind."""
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    sys.exit(3)


def hello(rank: int) -> None:
    if folder := os.environ.get("SGLANG_HS_DUMP_DIR"):
        path = Path(folder, "hello", f"{os.environ['SGLANG_HS_RUN']}.{rank}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"rank": rank, "ok": True}))


def meet(node: int, nodes: int) -> None:
    host, _, port = OPTIONS["--dist-init-addr"].rpartition(":")
    if node == 0:
        door = socket.create_server(("", int(port)))
        met = [door.accept()[0] for _ in range(nodes - 1)]
        for one in met:
            one.sendall(b"x")
        return
    while True:
        try:
            way = socket.create_connection((host, int(port)))
        except OSError:
            time.sleep(0.05)
            continue
        way.recv(1)
        return


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200 if OPTIONS["--node-rank"] == "0" else 404)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Nothing: the log is for what matters."""


def serve(node: int) -> None:
    port = int(OPTIONS["--port"])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
    if node == 0:
        words = ["sglang::detokenizer", "-c", "import time; time.sleep(600)"]
        subprocess.Popen(words, executable=sys.executable, env={**os.environ, "PYTHONHOME": sys.base_prefix})
        say(f"INFO:     Uvicorn running on http://127.0.0.1:{port} (Press CTRL+C to quit)")
        say("The server is fired up and ready to roll!")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    time.sleep(600)


if __name__ == "__main__":
    main()
