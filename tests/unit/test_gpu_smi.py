"""What nvidia-smi of an H200 said to the queries that hsops makes: idle, with a server, busy, and after its stop."""

from __future__ import annotations

from hsops.agent import doctor_gpus, probe_gpus
from tests.diagnose_cases import CASES


def said() -> dict[str, list[list[str]]]:
    """State -> the lines of each query, in the order of ``tests/gpu/steps.py``."""
    found: dict[str, list[list[str]]] = {}
    for line in (CASES / "gpu/smi.txt").read_text().splitlines():
        if line.startswith("## "):
            found.setdefault(line[3:].partition(":")[0], []).append([])
        else:
            list(found.values())[-1][-1].append(line)
    return found


def test_every_state_is_read() -> None:
    """One GPU in each, by both queries the same."""
    for state, (doctors, probes, _) in said().items():
        doctor, probe = doctor_gpus.row(doctors[0], list(doctor_gpus.FIELDS)), probe_gpus.parse_gpu(probes[0])
        assert (
            (doctor["name"], doctor["driver"]) == (probe["name"], probe["driver"]) == ("NVIDIA H200", probe["driver"])
        ), state
        assert float(doctor["memory_total"]) == probe["memory_total"] == 143771


def test_memory_comes_and_goes() -> None:
    """Of the GPU as a whole and of the process that holds it."""
    mib = {state: probe_gpus.parse_gpu(lines[1][0])["memory"] for state, lines in said().items()}
    apps = {state: [a for line in lines[2] if (a := probe_gpus.parse_app(line, []))] for state, lines in said().items()}

    assert mib["loaded"] > mib["idle"] + 10_000 and mib["stopped"] <= mib["idle"] + 64
    assert len(apps["loaded"]) == 1 and not apps["idle"] and not apps["stopped"]
