"""Pages of measured figures are what their data says."""

import json

from benchmarks import extract, fetch, fidelity
from tests.e2e import deaths
from tests.hangs import results as hangs
from tests.matrix import results
from tests.slurm import results as slurm
from tests.stalls import results as stalls
from tests.storm import drain
from tests.storm import results as storm
from tests.supervision import results as supervision


def test_the_matrix_is_rendered_from_its_data():
    """`make matrix` writes both."""
    assert results.PAGE.read_text() == results.page(results.read())


def test_the_fidelity_run_is_rendered_from_its_data():
    """`python -m benchmarks fidelity` writes both."""
    data = json.loads((fidelity.DOCS / "fidelity.json").read_text())

    assert (fidelity.DOCS / "fidelity.md").read_text() == fidelity.page(data)


def test_the_soak_is_rendered_from_its_data():
    """`make stalls` writes both."""
    assert stalls.PAGE.read_text() == stalls.page(stalls.read())


def test_the_deaths_are_rendered_from_their_data():
    """`make deaths` writes both."""
    assert deaths.PAGE.read_text() == deaths.page(deaths.read())


def test_supervision_is_rendered_from_its_data():
    """`make tp8`, `make busy`, `make cut` and `make cycles` write both."""
    assert supervision.PAGE.read_text() == supervision.page(supervision.read())


def test_the_jobs_are_rendered_from_their_data():
    """`make slurm` writes both."""
    assert slurm.PAGE.read_text() == slurm.page(slurm.read())


def test_the_hangs_are_rendered_from_their_data():
    """`make hangs` writes both."""
    assert hangs.PAGE.read_text() == hangs.page(hangs.read())


def test_the_storm_is_rendered_from_its_data():
    """`make fetch-faults` writes both."""
    assert storm.PAGE.read_text() == storm.page(storm.read())


def test_the_drain_is_rendered_from_its_data():
    """`make drain` writes both."""
    assert drain.PAGE.read_text() == drain.page(json.loads(drain.DATA.read_text()))


def test_the_speed_of_fetch_is_rendered_from_its_data():
    """`python -m benchmarks.fetch` writes both."""
    assert fetch.PAGE.read_text() == fetch.page(json.loads(fetch.DATA.read_text()))


def test_the_cost_of_extract_is_rendered_from_its_data():
    """`python -m benchmarks.extract` writes both."""
    assert extract.PAGE.read_text() == extract.page(json.loads(extract.DATA.read_text()))
