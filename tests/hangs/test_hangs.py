"""Real servers that hang and die in known ways, and real ones that are well: what does ``hsops diagnose`` say?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hsops import lab as labs
from hsops.lab import Lab
from tests.e2e.cli import Cli
from tests.hangs import control, results
from tests.hangs.cases import FINE, SESSIONS, Case, Session
from tests.hangs.conftest import RESUME, TP
from tests.hangs.patient import Patient

_MEASURED = ("good", "quiet")  # what a busy server notices
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab with SGLang 0.5.9; HSOPS_HANGS_HOME keeps it, and its good run, for a run in pieces."""
    kept = os.environ.get("HSOPS_HANGS_HOME")
    home = Path(kept) if kept else tmp_path_factory.mktemp("labs") / "lab"
    yield labs.up(home, sglang="0.5.9", tp=TP)
    labs.down(home, purge=not kept)


@pytest.fixture(scope="session")
def good(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The baseline of one undisturbed launch."""
    path = lab.layout.home / f"good-{TP}"
    if not path.exists():
        hsops = Cli(lab.inventory).changed(tmp_path_factory.mktemp("inventory") / "inventory.yaml", patches=[])
        assert hsops("launch", "--wait-healthy", timeout=900).returncode == 0
        assert hsops("stop").returncode == 0
        shutil.copy(lab.layout.home / "state/baselines/tiny.json", path)
    return path


@pytest.fixture
def patient(lab: Lab, good: Path, session: Session, tmp_path: Path) -> Iterator[Patient]:
    """The server of a session, not started yet. It leaves nothing behind."""
    labs.up(lab.layout.home, fault=session.fault)
    shutil.copy(good, lab.layout.home / "state/baselines/tiny.json")
    control.install(lab.layout.site)
    orders = lab.layout.home / "orders"
    orders.mkdir(exist_ok=True)
    hsops = Cli(lab.inventory).changed(
        tmp_path / "inventory.yaml",
        patches=["hs-dump"] if session.patched else [],
        env={control.VARIABLE: str(orders)},
    )
    looker = without_ptrace(hsops, tmp_path / "without.yaml") if session.untraced else hsops
    found = Patient(hsops, looker, lab, orders, TP)
    yield found
    found.clear()
    assert hsops("stop").returncode == 0
    labs.up(lab.layout.home)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
def test_a_server_goes_through(session: Session, patient: Patient) -> None:
    """Each state gets its name, each healthy look none, and whoever looked lets go of everything."""
    known = results.MEASURED.read().get(str(TP), {}) if RESUME else {}
    cases = [case for case in session.cases if case.ends or not known.get(case.id, {}).get("right")]
    up = [case for case in cases if case in session.up]
    looks = patient.start(up, patched=session.patched, records=session.followed)
    ends = any(case.ends for case in up)
    wrong = [] if not up else [case.id for case in up if not patient.told[case.id]["right"]]
    if not ends:
        looks += patient.look_well(session.fine)
        if session.name in _MEASURED:
            results.record(TP, session.name, {"looks": looks, "rates": patient.rates(), "cores": os.cpu_count()})
        wrong += [case.id for case in cases if case not in session.up and not serving(patient, case)]
    if session.name not in _MEASURED and looks:
        results.record(TP, session.name, {"looks": looks, "cores": os.cpu_count()})

    alarms = [one for one in looks if one["class"] not in FINE]
    left = [thread for seen in [*patient.told.values(), *looks] for thread in seen["left"]]
    assert (wrong, alarms, left) == ([], [], [])


def serving(patient: Patient, case: Case) -> bool:
    """The state, what was said of it, and the way back from it."""
    seen = patient.go_through(case)
    if not case.ends:
        patient.until_well()
    return bool(seen["right"])


def without_ptrace(hsops: Cli, path: Path) -> Cli:
    """The same host, where hsops may look into no process: neither py-spy nor strace work."""
    content = yaml.safe_load(hsops.inventory.read_text())
    content["hosts"]["lab"]["via"] = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    path.write_text(yaml.safe_dump(content))
    return Cli(path)
