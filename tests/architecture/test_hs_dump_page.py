"""docs/reference/hs-dump.md says in its words what the payload's tables say; ``make docs`` writes its own table."""

from pathlib import Path

from hsops.payload.hsops_hs_dump.rules import GRAPHS_OFF
from hsops.payload.hsops_hs_dump.strategy import STRATEGIES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "hs-dump.md").read_text()


def span(since: str, until: str) -> str:
    return f"{since} to {until}" if until else f"{since} on"


def test_the_flags_against_prefill_graphs_are_on_the_page():
    """With their releases."""
    assert [g.flag for g in GRAPHS_OFF if f"`--{g.flag}` ({span(g.since, g.until)})" not in PAGE] == []


def test_the_strategies_are_on_the_page():
    """In the order in which they are tried, with the releases they were tried on."""
    rows = [PAGE.find(f"| `{s.name}` | {s.since} to {s.until} |") for s in STRATEGIES]

    assert -1 not in rows
    assert rows == sorted(rows)
