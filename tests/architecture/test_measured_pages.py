"""Pages of measured figures are what their data says."""

from tests.matrix import results


def test_the_matrix_is_rendered_from_its_data():
    """`make matrix` writes both."""
    assert results.PAGE.read_text() == results.page(results.read())
