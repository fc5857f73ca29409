"""docs/reference/milestones.md says what the tables say."""

from pathlib import Path

from hsops.core.log_errors import STACK, TROUBLES
from hsops.core.milestone_table import MILESTONES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "milestones.md"


def in_a_table(pattern: str) -> str:
    return "`" + pattern.replace("|", "\\|") + "`"


def test_every_milestone_is_on_the_page():
    """Each milestone with each of its texts, in order."""
    page = PAGE.read_text()
    wanted = [(m.id, in_a_table(text.pattern)) for m in MILESTONES for text in m.texts]

    places = [page.index(f"`{name}`") for name, _ in wanted]

    assert places == sorted(places)
    assert [text for _, text in wanted if text not in page] == []


def test_every_trouble_is_on_the_page():
    """Each kind of trouble with its role and text."""
    page = PAGE.read_text()

    missing = [
        t.id for t in (*TROUBLES, STACK) if f"| `{t.id}` | {t.role} | {in_a_table(t.pattern.pattern)} |" not in page
    ]

    assert missing == []
