"""The page of a diagnosis: whole, safe, and from nowhere else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hsops.cli.app import app
from hsops.diagnose import judge
from hsops.diagnose.evidence import Evidence
from hsops.render.report import page
from tests import corpus, diagnose_cases
from tests.report_page import seeds_page

VOID = {"meta", "rect", "line", "br"}


class Reader(HTMLParser):
    """Collects text and sees to it that every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID or (tag == "rect" and not self.rawdata.startswith("/>")):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] in VOID and self.open[-1] != tag:
            self.open.pop()
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def written(evidence: Evidence) -> str:
    """The page of some evidence."""
    return page(judge(evidence), evidence, server="kimi", version="1")


def test_the_seeds_hang_is_on_its_page() -> None:
    """The verdict, every rank over time beside good runs, its CPU, its system calls, and the one frame of all."""
    text = seeds_page()
    read = Reader(text)

    assert "warmup-deadlock-busy-wait" in read.text and "good runs" in read.text
    assert all(read.text.count(f"TP{rank}") >= 3 for rank in range(8))
    assert len(re.findall(r'class="s-silent"', text)) == 9 and "nothing for 4:" in read.text
    assert "write to eventfd" in read.text and "TP0-TP7" in read.text and "VocabParallelEmbedding.forward" in read.text


@pytest.mark.parametrize("name", diagnose_cases.names())
def test_every_case_has_a_page(name: str) -> None:
    """Closed elements, its verdict; also where evidence is missing."""
    evidence = diagnose_cases.evidence(diagnose_cases.load(name))

    assert judge(evidence).name in Reader(written(evidence)).text


def test_a_page_loads_nothing() -> None:
    """No script, no address: a policy of its own forbids the rest."""
    for case in corpus.cases():
        read = Reader(written(diagnose_cases.evidence(case)))
        assert not {"script", "link", "img", "iframe", "object", "a"} & set(read.tags)
        assert not [name for name, _ in read.attributes if name in ("src", "href") or name.startswith("on")]
    assert "default-src 'none'" in seeds_page() and "url(" not in seeds_page() and "@import" not in seeds_page()


def test_what_a_log_says_stays_text() -> None:
    """A line with markup in it is shown, not obeyed."""
    case: dict[str, Any] = {"upto": "weights", "log": "<script>alert(1)</script>\n<b title='\"x\"'>&amp;\n"}

    text = written(diagnose_cases.evidence(case))

    assert "<script" not in text and "<script>alert(1)</script>" in Reader(text).text


def test_no_key_gets_onto_a_page() -> None:
    """Not from a last line either."""
    case: dict[str, Any] = {"upto": "weights", "log": "api_key='s3cr3t0s3cr3t0'\n"}

    assert "s3cr3t0" not in written(diagnose_cases.evidence(case))


def test_the_command_writes_it(tmp_path: Path) -> None:
    """From a bundle, and from a log in a pipe."""
    bundle = diagnose_cases.CASES / "gpu" / "R0-later.bundle"

    of_bundle = CliRunner().invoke(app, ["diagnose", "--bundle", str(bundle), "--html", str(tmp_path / "a.html")])
    of_pipe = CliRunner().invoke(app, ["diagnose", "--log", "-", "--html", str(tmp_path / "b.html")], input="x\n")

    assert (of_bundle.exit_code, of_pipe.exit_code) == (7, 1)
    assert "collective-mismatch" in Reader((tmp_path / "a.html").read_text()).text
    assert "unknown" in Reader((tmp_path / "b.html").read_text()).text
