"""docs/reference/hs-dump.md says what the contract's table says."""

from pathlib import Path

from hsops.payload.hsops_hs_dump.rules import GRAPHS_OFF, RULES, Rule

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hs-dump.md"
HEAD = "| argument | releases | fine | otherwise | read in |\n|---|---|---|---|---|\n"


def span(since: str, until: str) -> str:
    return f"{since} to {until}" if until else f"{since} on"


def row(rule: Rule) -> str:
    fine = " or ".join(f"`{value}`" for value in rule.fine)
    return f"| `{rule.argument}` | {span(rule.since, rule.until)} | {fine} | {rule.why} | {rule.source} |\n"


def test_every_rule_is_on_the_page():
    """The whole table, in order. After a change: python -m tests.architecture.test_hs_dump_page."""
    assert HEAD + "".join(map(row, RULES)) in PAGE.read_text()


def test_the_flags_against_prefill_graphs_are_on_the_page():
    """With their releases."""
    page = PAGE.read_text()

    assert [g.flag for g in GRAPHS_OFF if f"`--{g.flag}` ({span(g.since, g.until)})" not in page] == []


def renew() -> None:
    """Write the table as it is now into the page."""
    before, _, rest = PAGE.read_text().partition(HEAD)
    after = rest[rest.index("\n\n") + 1 :]
    PAGE.write_text(before + HEAD + "".join(map(row, RULES)) + after)


if __name__ == "__main__":
    renew()
