"""Playbooks: validated as a whole, run in order, diagnosed on failure."""

from pathlib import Path

import pytest

from hsops.cli.playbook import _extract
from hsops.core.errors import ConfigError, UnhealthyError
from hsops.core.events import ignore
from hsops.playbook.load import load
from hsops.playbook.model import Export, Extract, Verify
from hsops.playbook.runner import Done, Report, run
from hsops.render.console import Outcome
from hsops.render.playbook import closing_lines
from hsops.render.verify import outcome
from hsops.verify.verify import verify
from tests.dump_maker import make

ROOT = Path(__file__).parents[2]
FINE = Outcome({}, ["fine"])
ORDER = ["deploy", "launch", "extract", "verify"]


def faults(tmp_path: Path, text: str, **given: str) -> list[str]:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, given)
    return [str(fault).replace(f"{path}:", "") for fault in caught.value.faults]


def test_the_shipped_playbook_is_the_main_job():
    """playbooks/extract.yaml does deploy, launch, a drained extract, verify, with the variables of the command line."""
    plan = load(ROOT / "playbooks/extract.yaml", {"prompts": "p.jsonl", "to": "/data/hs"})

    assert [step.command for step in plan.steps] == ORDER
    assert plan.steps[2] == Extract(prompts="p.jsonl", drain="/data/hs")
    assert plan.steps[3] == Verify(dir="/data/hs", prompts="p.jsonl")
    assert plan.on_failure == "diagnose"


def test_every_fault_is_shown_with_its_place(tmp_path):
    """An unknown step, an unknown option, a wrong type and an unset variable are all named in one run."""
    text = (
        "name: x\n"
        "steps:\n"
        "  - depoly\n"
        "  - fetch: {to: '{dir}', stream: 3}\n"
        "  - extract: {prompts: p, concurrency: many}\n"
        "  - launch: yes please\n"
        "  - {a: 1, b: 2}\n"
    )

    found = faults(tmp_path, text)

    assert found == [
        "3:5: steps[0].depoly: no step 'depoly'; did you mean 'deploy'? "
        "(deploy, launch, extract, fetch, verify, export, stop, diagnose)",
        "4:17: steps[1].fetch.to: nobody sets {dir}; add --set dir=...",
        "4:26: steps[1].fetch.stream: unknown key; did you mean 'streams'?",
        "5:40: steps[2].extract.concurrency: expected an integer, got 'many'",
        "6:13: steps[3].launch: expected a mapping of options, got 'yes please'",
        "7:5: steps[4]: expected a command's name, or one command with its options",
    ]


def test_a_variable_that_nothing_uses_is_a_misspelt_one(tmp_path):
    """--set promts=... is refused with a suggestion."""
    text = "name: x\nvars: {prompts: p}\nsteps:\n  - extract: {prompts: '{prompts}'}\n"

    assert faults(tmp_path, text, promts="q") == ["1:1: no step uses {promts}; did you mean 'prompts'?"]


def test_steps_run_in_order_and_stop_at_the_first_failure():
    """The step after a failed one is never tried; the server is diagnosed."""
    plan = load(ROOT / "playbooks/extract.yaml", {})
    tried = []

    def act(step):
        tried.append(step.command)
        if step.command == "extract":
            raise UnhealthyError("the server died")
        return FINE

    report = run(plan, dict.fromkeys([*ORDER, "diagnose"], act), ignore, now=iter(range(99)).__next__)

    assert tried == ["deploy", "launch", "extract", "diagnose"]
    assert report.exit_code == 7
    assert report.error is not None
    assert [done.exit_code for done in report.steps] == [0, 0, 7]
    assert report.diagnosis is not None and report.diagnosis.command == "diagnose"


@pytest.mark.parametrize(
    "step,outcome,looked",
    [
        ("deploy", Outcome({}, [], 1), False),
        ("launch", Outcome({}, ["a rank died"], 7), True),
        ("launch", Outcome({"verdict": {"class": "x"}}, ["stalled"], 7), False),
        ("launch", Outcome({}, ["port taken"], 1), False),
        ("extract", Outcome({}, ["a prompt is too long"], 4), False),
        ("extract", Outcome({}, ["2 missing"], 3), True),
        ("extract", Outcome({}, ["Ctrl-C"], 130), False),
    ],
)
def test_a_diagnosis_is_made_where_the_server_may_be_to_blame(step, outcome, looked):
    """Also after a death during launch; not for what no look at the server can explain, and not twice."""
    plan = load(ROOT / "playbooks/extract.yaml", {})
    actions = dict.fromkeys([*ORDER, "diagnose"], lambda _: FINE) | {step: lambda _: outcome}

    report = run(plan, actions, ignore)

    assert (report.diagnosis is not None) == looked


def test_a_step_that_is_only_partly_done_stops_the_run():
    """A non-zero exit code without an exception counts as a failure too."""
    plan = load(ROOT / "playbooks/extract.yaml", {})
    actions = dict.fromkeys([*ORDER, "diagnose"], lambda _: FINE) | {"extract": lambda _: Outcome({}, ["2 missing"], 3)}

    report = run(plan, actions, ignore)

    assert report.exit_code == 3
    assert report.steps[-1].summary == "2 missing"


def test_a_step_is_summed_up_by_its_own_word_or_its_last_line():
    """A table of norms below the sums is no summary."""
    plan = load(ROOT / "playbooks/extract.yaml", {})
    actions = dict.fromkeys([*ORDER, "diagnose"], lambda _: FINE)
    actions |= {"verify": lambda _: Outcome({}, ["9 samples", "boundary 1  14.7"], summary="9 samples")}

    report = run(plan, actions, ignore)

    assert [done.summary for done in report.steps] == ["fine", "fine", "fine", "9 samples"]


def test_an_export_step_takes_the_options_of_the_command(tmp_path):
    """Under their names, `copy` too; a trainer that nobody knows is a fault with its place."""
    path = tmp_path / "p.yaml"
    path.write_text("name: x\nsteps:\n  - export: {dir: hs, to: train, format: specforge, copy: true}\n")
    bad = "name: x\nsteps:\n  - export: {dir: hs, to: train, format: eagle, copie: true}\n"

    plan = load(path, {})

    assert plan.steps == (Export(dir="hs", to="train", format="specforge", copy=True),)
    assert plan.steps[0].model_dump(by_alias=True)["copy"] is True
    assert faults(tmp_path, bad) == [
        "3:42: steps[0].export.format: input should be 'specforge' or 'speculators', got 'eagle'",
        "3:49: steps[0].export.copie: unknown key; did you mean 'copy'?",
    ]


FETCHED = {"samples": 9, "tokens": 900, "bytes": 2048, "troubles": [], "failed": {}, "to": "hs"}
VERIFIED = {"samples": 10_000, "tokens": 17_312_345, "bytes": 924 << 30, "findings": [], "folder": "hs", "norms": []}
MADE = {"to": "train", "format": "specforge"}


def step(command, data, code=0):
    return Done(command, code, 1.0, "", data)


@pytest.mark.parametrize(
    "steps,said",
    [
        (
            [step("extract", {"fetch": FETCHED}), step("verify", VERIFIED)],
            "10,000 samples · 17.3 M tokens · 924 GiB · 0 errors · every file verified",
        ),
        (
            [step("extract", {}), step("fetch", FETCHED)],
            "9 samples · 900 tokens · 2 KiB · 0 errors · every file checked        next: hsops verify hs",
        ),
        (
            [step("fetch", FETCHED), step("verify", VERIFIED), step("export", MADE)],
            "10,000 samples · 17.3 M tokens · 924 GiB · 0 errors · every file verified · in train for specforge",
        ),
        ([step("extract", {"fetch": FETCHED}), step("verify", VERIFIED, 1)], None),
        ([step("extract", {}), step("verify", {"checks": []})], None),
        ([step("deploy", {}), step("launch", {})], None),
    ],
)
def test_the_last_line_says_what_the_data_set_came_to(steps, said):
    """Only figures of a step that read what is here; nothing when a step failed, or nothing was brought."""
    assert list(closing_lines(Report(tuple(steps)))) == ([said] if said else [])


@pytest.mark.parametrize(
    "boundaries,finals,trainer",
    [
        ((1, 2, 3), ["pre-norm"], "speculators"),
        ((1, 2, 3), ["both"], "specforge"),
        ((1, 2, 3), ["post-norm"], "specforge"),
        ((1,), ["both"], "speculators"),
        ((1,), ["post-norm"], ""),
        ((1, 2, 3), ["none"], ""),
        ((1, 2, 3), ["both", "pre-norm"], "speculators"),
    ],
)
def test_the_export_that_is_hinted_at_is_one_that_the_dumps_can_become(tmp_path, boundaries, finals, trainer):
    """By the final state that all of them have and the number of boundaries; where no trainer reads them, none."""
    for number, final in enumerate(finals):
        make(tmp_path, f"s-{number}", [1, 2, 3], boundaries=boundaries, final=final)
    seen = outcome(verify(tmp_path, None, ignore), folder="hs").data

    (line,) = closing_lines(Report((step("fetch", FETCHED), step("verify", seen))))

    assert "0 errors · every file verified" in line
    assert line.partition("next: ")[2] == (f"hsops export --format {trainer} hs --to DIR" if trainer else "")


def test_extract_keeps_what_it_tokenised(tmp_path):
    """For the steps after it, which know no tokenizer; without the option nothing is written."""
    path = tmp_path / "p.yaml"
    steps = "[{extract: {prompts: a, tokenized: ~/t.jsonl}}, {extract: {prompts: a}}]"
    path.write_text(f"name: p\nsteps: {steps}\n")

    kept, plain = (_extract(step, "tiny").tokenized for step in load(path, {}).steps)

    assert (kept, plain) == (Path("~/t.jsonl").expanduser(), None)
