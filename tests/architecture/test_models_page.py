"""docs/reference/models.md, which is made from SGLang's wheels, agrees with what the code says without them."""

import re

from scripts import models_table

PAGE = (models_table.FOLDER / "models.md").read_text()
TRUNKS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE[: PAGE.index("## Why not")].splitlines()
    if line.startswith("| `")
]


def test_its_words_are_those_of_its_maker():
    """And its columns are the releases that the payload says it was tried on."""
    *_, head = re.findall(r"^\| trunk \|(.*)\| architectures \|$", PAGE, re.MULTILINE)

    assert PAGE.startswith(models_table.head())
    assert [f"0.5.{number.strip()}" for number in head.split("|")] == models_table.VERSIONS
    assert {len(row) for row in TRUNKS} == {len(models_table.VERSIONS) + 2}


def test_every_letter_is_a_strategy():
    """Of those that the payload has, each is met, and nothing else."""
    met = {cell.strip("*") for row in TRUNKS for cell in row[1:-1]}

    assert met == {*models_table.LETTERS.values(), ""}


def test_bold_is_what_was_run():
    """Each run of models-run.csv, and nothing that was not run."""
    runs, met = models_table.runs(), set()
    wrong = []
    for row in TRUNKS:
        for version, cell in zip(models_table.VERSIONS, row[1:-1], strict=True):
            ran = {(version, architecture) for architecture in row[-1].split(", ")} & runs if cell else set()
            met |= ran
            if cell.startswith("**") != bool(ran):
                wrong.append((row[0], version))

    assert wrong == []
    assert met == runs


def test_what_is_refused_says_why():
    """Each trunk with a release that is not captured has its row, of the newest such release."""
    why = dict(re.findall(r"^\| (`\w+` \([\w/]+\)) \| (0\.5\.\d+) \| .+ \|$", PAGE, re.MULTILINE))
    refused = {
        row[0]: version
        for row in TRUNKS
        for version, cell in zip(models_table.VERSIONS, row[1:-1], strict=True)
        if cell == "-"
    }

    assert why == refused
