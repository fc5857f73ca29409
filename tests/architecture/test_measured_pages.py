"""Pages of measured figures are what their data says."""

import json

import pytest

from benchmarks import extract, fetch, fidelity
from tests.e2e import deaths
from tests.hangs import results as hangs
from tests.matrix import results as matrix
from tests.slurm import results as slurm
from tests.stalls import results as stalls
from tests.storm import drain
from tests.storm import results as storm
from tests.supervision import results as supervision


@pytest.mark.parametrize("results", [hangs, matrix, slurm, stalls, storm, supervision], ids=lambda one: one.__name__)
def test_a_long_run_is_rendered_from_its_data(results):
    """Its make target writes both."""
    assert results.MEASURED.is_fresh


def test_the_fidelity_run_is_rendered_from_its_data():
    """`python -m benchmarks fidelity` writes both."""
    data = json.loads((fidelity.DOCS / "fidelity.json").read_text())

    assert (fidelity.DOCS / "fidelity.md").read_text() == fidelity.page(data)


def test_the_deaths_are_rendered_from_their_data():
    """`make deaths` writes both."""
    assert deaths.PAGE.read_text() == deaths.page(deaths.read())


def test_the_drain_is_rendered_from_its_data():
    """`make drain` writes both."""
    assert drain.PAGE.read_text() == drain.page(json.loads(drain.DATA.read_text()))


def test_the_speed_of_fetch_is_rendered_from_its_data():
    """`python -m benchmarks.fetch` writes both."""
    assert fetch.PAGE.read_text() == fetch.page(json.loads(fetch.DATA.read_text()))


def test_the_cost_of_extract_is_rendered_from_its_data():
    """`python -m benchmarks.extract` writes both."""
    assert extract.PAGE.read_text() == extract.page(json.loads(extract.DATA.read_text()))
