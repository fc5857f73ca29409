"""Documents say what the code says."""

import re
from pathlib import Path

import pytest

from hsops.core import errors
from scripts import reference, site

ROOT = Path(__file__).parents[2]


def test_the_error_tree_is_drawn_as_it_is():
    """The tree at the top of core/errors.py names every class with its exit code."""
    drawn = dict(re.findall(r"(\w+Error) +exit (\d)", errors.__doc__ or ""))
    names = set(re.findall(r"\b(\w+Error)\b", errors.__doc__ or ""))
    classes = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.HsopsError)
    }

    assert names == set(classes)
    assert all(classes[name].exit_code == int(code) for name, code in drawn.items())


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_is_what_the_code_says(name):
    """Each page of docs/reference that `make docs` writes."""
    assert (ROOT / "docs/reference" / name).read_text() == reference.PAGES[name](), "make docs"


def test_every_page_is_in_a_menu_of_the_site():
    """And whatever a menu names is there."""
    assert site.unlisted() == []


def test_links_between_documents_lead_somewhere():
    """Every relative link and picture in README and docs/ names a file that exists."""
    broken = []
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        pictures = re.findall(r'<(?:img|source)[^>]* src(?:set)?="([^"]+)"', page.read_text())
        for target in [*re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()), *pictures]:
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")

    assert not broken


def test_help_loses_no_words_to_markup():
    """Square brackets in a help text are styles to Rich: `[the default]` would not be shown."""
    text = (ROOT / "docs/reference/commands.md").read_text()

    assert " ." not in text and "[[" not in text
