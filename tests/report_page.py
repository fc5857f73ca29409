"""The page of the hang that hsops was made for, as ``hsops diagnose --html`` writes it.

    python -m tests.report_page FILE

``make report-picture`` takes docs/images/report-light.png and report-dark.png of it, in a real browser.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hsops import __version__
from hsops.diagnose import judge
from hsops.render.report import page
from tests import diagnose_cases


def seeds_page() -> str:
    """Eight ranks that spin after the weights."""
    evidence = diagnose_cases.evidence(diagnose_cases.load("seeds-hang"))
    return page(judge(evidence), evidence, server="kimi-k2.5", version=__version__)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(seeds_page(), encoding="utf-8")
