"""Reads ``tests/cases/diagnose/*.yaml``: short descriptions become the evidence that the agent would have sent.

A case has ``title``, ``source``, ``expect`` (class, optional rank and confidence, or ``any`` of several classes) and:
``log`` (text) or ``log_file`` (in ``tests/cases/logs``), ``tp``; ``upto``: a usual start up to this milestone stands
before ``log``, with ``args`` among its arguments, and goes on to ``rest`` behind it; for a live case ``live`` with any
of ``processes``, ``port``, ``silent`` (seconds), ``lines``, ``grew``, ``gpus``, ``kernel``, ``could_not``, ``dumps``;
``run``; ``baseline`` (lines and seconds of good runs at milestones). A ``stack`` is one of ``STACKS`` or spelled out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hsops.core.baseline import Baseline, GoodRun, Step
from hsops.core.runs import Run, parse_run
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.reading import from_log, from_probe

CASES = Path(__file__).parent / "cases"
NOW = 1_000_000.0


def names() -> list[str]:
    """All cases, by file name."""
    return sorted(path.stem for path in (CASES / "diagnose").glob("*.yaml"))


def load(name: str) -> dict[str, Any]:
    """One case."""
    case: dict[str, Any] = yaml.safe_load((CASES / "diagnose" / f"{name}.yaml").read_text())
    return case


def evidence(case: dict[str, Any]) -> Evidence:
    """What there is to judge by in a case."""
    log = (CASES / "logs" / case["log_file"]).read_text() if "log_file" in case else written(case)
    if "live" not in case:
        return from_log("server.log", log.encode(), tp=case.get("tp"))
    return from_probe(
        _raw(case["live"], log),
        host="rtx8",
        run=_run(case["run"], case.get("tp", 1)) if "run" in case else None,
        tp=case.get("tp", 1),
        baseline=_baseline(case["baseline"]) if "baseline" in case else None,
    )


def raw(case: dict[str, Any]) -> dict[str, Any]:
    """What the agent would have sent for a live case."""
    return _raw(case["live"], written(case))


def written(case: dict[str, Any]) -> str:
    """A case's log: a usual start up to its milestone, and what it says itself."""
    if "upto" not in case:
        return str(case.get("log", ""))
    tp, until = case.get("tp", 1), case.get("rest", case["upto"])
    steps = list(start(tp, case.get("args", "")))
    cut, end = (1 + [step for step, _ in steps].index(word) for word in (case["upto"], until))
    before, after = ("".join(text for _, text in part) for part in (steps[:cut], steps[cut:end]))
    return f"{before}{case.get('log', '')}{after}"


def start(tp: int, args: str = "") -> Iterator[tuple[str, str]]:
    """What SGLang 0.5.9 says at each milestone of a start."""
    tags = [f" TP{rank}" for rank in range(tp)] if tp > 1 else [""]
    more = f", {args}" if args else ""
    words = f"server_args=ServerArgs(tp_size={tp}, device='cuda', port=8000{more})"
    yield "arguments", f"[2026-11-29 17:40:00] {words}\n"
    for minute, (step, said) in enumerate(_STEPS, 40):
        who = tags if step in _EVERY_RANK else tags[:1] if step in ("nccl", "prefill") else [""]
        yield step, "".join(f"[2026-11-29 17:{minute}:{at + 1:02}{tag}] {said}\n" for at, tag in enumerate(who))


_EVERY_RANK = ("distributed-begin", "distributed", "weights-begin", "weights", "pool", "graphs-begin")
_STEPS = (
    ("distributed-begin", "Init torch distributed begin."),
    ("nccl", "sglang is using nccl==2.27.7"),
    ("distributed", "Init torch distributed ends. elapsed=8.02 s, mem usage=0.40 GB"),
    ("weights-begin", "Load weight begin. avail mem=94.01 GB"),
    ("weights", "Load weight end. elapsed=60.10 s, type=KimiK25ForConditionalGeneration, avail mem=17.50 GB"),
    ("pool", "Memory pool end. avail mem=5.10 GB"),
    ("graphs-begin", "Capture cuda graph begin. This can take up to several minutes. avail mem=5.02 GB"),
    ("http", "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)"),
    ("model-info", 'INFO:     127.0.0.1:51516 - "GET /model_info HTTP/1.1" 200 OK'),
    ("prefill", "Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, #running-req: 0, #queue-req: 0"),
    ("ready", "The server is fired up and ready to roll!"),
)

_SRT = "sglang/srt"
_LOOP = [
    f"Scheduler.event_loop_normal {_SRT}/managers/scheduler.py 1123",
    f"run_scheduler_process {_SRT}/managers/scheduler.py 3171",
]
_RUN = [f"Scheduler.run_batch {_SRT}/managers/scheduler.py 2368", *_LOOP]
_LOAD = [f"ModelRunner.load_model {_SRT}/model_executor/model_runner.py 900", _LOOP[-1]]
_GRAPHS = [f"ModelRunner.init_device_graphs {_SRT}/model_executor/model_runner.py 1800", _LOOP[-1]]
_JIT = [f"Attention.init_forward_metadata {_SRT}/layers/attention/flashinfer_backend.py 300", *_GRAPHS]
STACKS = {
    "first-collective": [
        f"PyNcclCommunicator.all_reduce {_SRT}/distributed/device_communicators/pynccl.py 170",
        f"PyNcclCommunicator.__init__ {_SRT}/distributed/device_communicators/pynccl.py 120",
        f"ModelRunner.init_torch_distributed {_SRT}/model_executor/model_runner.py 700",
        _LOOP[-1],
    ],
    "nccl-init": [
        f"NCCLLibrary.ncclCommInitRank {_SRT}/distributed/device_communicators/pynccl_wrapper.py 350",
        f"PyNcclCommunicator.__init__ {_SRT}/distributed/device_communicators/pynccl.py 108",
        f"ModelRunner.init_torch_distributed {_SRT}/model_executor/model_runner.py 700",
        _LOOP[-1],
    ],
    "custom-all-reduce": [
        f"CustomAllreduce.all_reduce {_SRT}/distributed/device_communicators/custom_all_reduce.py 380",
        f"GroupCoordinator.all_reduce {_SRT}/distributed/parallel_state.py 500",
        f"DeepseekV2ForCausalLM.forward {_SRT}/models/deepseek_v2.py 2925",
        *_RUN,
    ],
    "load-weights": [f"safetensors_weights_iterator {_SRT}/model_loader/weight_utils.py 700", *_LOAD],
    "jit": ["build_and_load flashinfer/jit/core.py 140", *_JIT],
    "jit-later": ["run_ninja flashinfer/jit/cpp_ext.py 250", "build_and_load flashinfer/jit/core.py 150", *_JIT],
    "jit-lock": [
        "FileBaton.wait torch/utils/file_baton.py 60",
        "_jit_compile torch/utils/cpp_extension.py 1700",
        "load torch/utils/cpp_extension.py 1300",
        *_LOAD,
    ],
    "graph-capture": [
        f"CudaGraphRunner.capture_one_batch_size {_SRT}/model_executor/cuda_graph_runner.py 500",
        f"CudaGraphRunner.capture {_SRT}/model_executor/cuda_graph_runner.py 420",
        *_GRAPHS,
    ],
    "launcher-waits": [
        "Connection.recv multiprocessing/connection.py 250",
        f"_launch_subprocesses {_SRT}/entrypoints/engine.py 800",
    ],
    "send": [
        "Socket.send_multipart zmq/sugar/socket.py 700",
        f"send_metadata {_SRT}/disaggregation/conn.py 90",
        *_LOOP,
    ],
    "mlp-sync": [
        "all_gather_into_tensor torch/distributed/distributed_c10d.py 3800",
        f"prepare_mlp_sync_batch_raw {_SRT}/managers/scheduler.py 2000",
        *_RUN,
    ],
    "decode-result": [
        "Event.synchronize torch/cuda/streams.py 230",
        f"process_batch_result_decode {_SRT}/managers/scheduler_output_processor_mixin.py 200",
        *_LOOP,
    ],
    "idle": [f"Scheduler.recv_requests {_SRT}/managers/scheduler.py 1200", *_LOOP],
    "hidden-states-copy": [
        f"process_batch_result_decode {_SRT}/managers/scheduler_output_processor_mixin.py 260",
        *_LOOP,
    ],
    "hub": [
        "create_connection urllib3/util/connection.py 73",
        "HTTPAdapter.send requests/adapters.py 660",
        "hf_hub_download huggingface_hub/file_download.py 1000",
        f"get_config {_SRT}/utils/hf_transformers_utils.py 200",
    ],
}  # fmt: skip


def _raw(live: dict[str, Any], log: str) -> dict[str, Any]:
    found: dict[str, Any] = {"time": NOW, "took_s": 2.0, **live}
    found["processes"] = [
        _process(one, 1000 + i) for i, short in enumerate(live.get("processes", ())) for one in _many(short)
    ]
    if log:
        lines, grew = live.get("lines", log.count("\n")), live.get("grew", 0)
        found["log"] = {
            "path": "server.log",
            "head": log,
            "lines": lines,
            "changed": live.get("silent", 0),
            "size": len(log),
            "size_after": len(log) + grew,
        }
    if "port" in live:
        found["port"] = _port(live["port"])
    found["gpus"] = [gpu for one in live.get("gpus", ()) for gpu in _gpus(one)]
    found["could_not"] = [{"probe": p, "why": w, "message": w} for p, w in live.get("could_not", {}).items()]
    return found


def _many(short: dict[str, Any]) -> list[dict[str, Any]]:
    """``ranks: 8`` stands for eight equal schedulers."""
    rest = {key: value for key, value in short.items() if key != "ranks"}
    if "ranks" not in short:
        return [rest]
    return [{**rest, "role": "scheduler", "rank": rank} for rank in range(short["ranks"])]


def _gpus(short: dict[str, Any]) -> list[dict[str, Any]]:
    """``count: 8`` stands for eight equal GPUs."""
    rest = {key: value for key, value in short.items() if key != "count"}
    return [{**rest, "index": index} for index in range(short["count"])] if "count" in short else [rest]


def _process(short: dict[str, Any], pid: int) -> dict[str, Any]:
    state = short.get("state", "S")
    found = {
        "pid": short.get("pid", pid + (short.get("rank") or 0)),
        "role": short["role"],
        "rank": short.get("rank"),
        "name": short.get("name", short["role"]),
        "state": state,
        "started": NOW - short.get("age", 600),
        "ended": short.get("ended", ""),
        "orphan": short.get("orphan", False),
        "files": short.get("files", {"0": "/dev/null", "1": "server.log", "2": "server.log"}),
        "preload": short.get("preload", ""),
    }
    if state not in "ZX":
        found["sample"] = _sample(short, state)
    if "stack" in short:
        found["stacks"] = [
            {"threads": [_thread(short["stack"])]},
            {"threads": [_thread(short.get("then", short["stack"]))]},
        ]
    if "calls" in short:
        top = [[*short.get("call", ["write", "eventfd"]), short["calls"]]]
        found["strace"] = {
            "calls": short["calls"],
            "seconds": 1.0,
            "top": top,
            "eventfd_writes": short.get("eventfd", 0),
        }
    return found


def _sample(short: dict[str, Any], state: str) -> dict[str, Any]:
    cpu, running = short.get("cpu", 0.0), round(20 * short.get("running", 1.0 if short.get("cpu", 0) > 80 else 0.0))
    return {
        "state": state,
        "cpu": cpu,
        "read_bytes_s": short.get("read", 0),
        "rchar_s": short.get("rchar", 0),
        "majflt_s": short.get("faults", 0),
        "main": {
            "cpu": cpu,
            "user": cpu,
            "calls": {"running": running, "202": 20 - running},
            "wchan": short.get("wchan", "0" if running == 20 else "futex_do_wait"),
            "at": short.get("at", ["", ""]),
        },
    }


def _thread(frames: list[str] | str) -> dict[str, Any]:
    """Frames, innermost first, each ``name file line``, or the name of one of ``STACKS``."""
    rows = [frame.rsplit(" ", 2) for frame in (STACKS[frames] if isinstance(frames, str) else frames)]
    return {
        "name": "MainThread",
        "main": True,
        "active": True,
        "frames": [[name, file, int(line)] for name, file, line in rows],
    }


def _port(short: dict[str, Any]) -> dict[str, Any]:
    """``{open: 1000, health: 503}``: who listens, and what the port answers."""
    found: dict[str, Any] = {"number": short.get("number", 8000), "listener": None}
    if "open" in short:
        found["listener"] = {"pid": short["open"], "command": "python"}
    if "clients" in short:
        found["clients"] = short["clients"]
    for key in ("health", "model_info"):
        if key in short:
            value = short[key]
            found[key] = {"status": value} if isinstance(value, int) else {"error": value}
    return found


def _run(short: dict[str, Any], tp: int) -> Run:
    whole: dict[str, Any] = {
        "id": "1129-174200-3f9c",
        "server": "kimi",
        "phase": "running",
        "pid": 1000,
        "started": NOW - 600,
        "port": 8000,
        "tp": tp,
        "argv": ["python"],
        "spec_hash": "1",
        "directory": "/runs/1",
        "log": "server.log",
        "dump_dir": "",
        "patches": {},
        "sglang": "0.5.9",
        "exit": None,
        "ranks": {},
        "helpers": {},
        "rank_pids": {},
        "left": [],
        "uptime_s": 600.0,
        **short,
    }
    return parse_run(whole)


def _baseline(short: dict[str, Any]) -> Baseline:
    """``{lines: [636, 641], seconds: 400, steps: {weights: [215, 390]}}``: two good runs."""
    steps = {name: Step(lines, seconds) for name, (lines, seconds) in short["steps"].items()}
    return Baseline(
        "kimi", tuple(GoodRun(f"r{n}", "1", "0.5.9", 0.0, steps, n, float(short["seconds"])) for n in short["lines"])
    )
