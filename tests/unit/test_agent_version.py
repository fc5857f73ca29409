"""SGLang's version from the metadata beside it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from hsops.agent.facts import _version_beside


def metadata(site: Path, folder: str, text: str) -> None:
    """A distribution's metadata folder."""
    (site / folder).mkdir()
    (site / folder / "METADATA").write_text(text)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12.post1", "0.5.9+cu130.dirty"])
def test_it_is_what_the_standard_library_would_say(version: str, tmp_path: Path) -> None:
    """The header counts, not what the description below says."""
    text = f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\nSummary: x\n\nVersion: 9\n"
    metadata(tmp_path, f"sglang-{version}.dist-info", text)
    metadata(tmp_path, "sglang_router-0.1.dist-info", "Name: sglang-router\nVersion: 0.1\n")

    (told,) = importlib.metadata.distributions(name="sglang", path=[str(tmp_path)])
    assert _version_beside(str(tmp_path)) == told.version == version


@pytest.mark.parametrize(
    "folders", [[], ["sglang-0.5.8.dist-info", "sglang-0.5.9.dist-info"]], ids=["none", "two, after a torn upgrade"]
)
def test_where_it_is_not_plain_the_standard_library_is_asked(folders: list[str], tmp_path: Path) -> None:
    """None means that."""
    for folder in folders:
        metadata(tmp_path, folder, "Name: sglang\nVersion: 1\n")

    assert _version_beside(str(tmp_path)) is None


def test_a_description_is_not_the_version(tmp_path: Path) -> None:
    """A header without the line."""
    metadata(tmp_path, "sglang-0.5.9.dist-info", "Name: sglang\n\nVersion: 9\n")

    assert _version_beside(str(tmp_path)) is None
