"""Who changes which file, over all folders that patches were ever applied in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from hsops.agent import patch_shapes
from hsops.agent.patch_site import Site
from hsops.agent.patch_store import patches_folder
from hsops.agent.protocol import Refusal


def places(state_dir: str, name: str) -> list[str]:
    """The folders that a patch is recorded in and that are still there."""
    return [record["site"] for record in _records(state_dir, name) if os.path.isdir(record["site"])]


def owners(state_dir: str, site: Site, paths: Iterable[str]) -> dict[str, str]:
    """Path -> the patch that changes it, recorded for ``site`` itself or for a folder above or below it.

    By whatever link a file is named, its owner is one: told are real paths, and those of ``paths`` that lead to them.
    """
    folder = patches_folder(state_dir)
    found = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        for record in _records(state_dir, name):
            for entry in record["files"]:
                if not entry["cache"]:
                    found[os.path.realpath(os.path.join(record["site"], entry["path"]))] = name
    below = {os.path.relpath(full, site.root): name for full, name in found.items()}
    led = {path: found[full] for path in paths if (full := site.path(path)) in found}
    return {path: name for path, name in below.items() if not path.startswith("../")} | led


def _records(state_dir: str, name: str) -> Iterator[dict[str, Any]]:
    folder = os.path.join(patches_folder(state_dir), name)
    for key in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        path = os.path.join(folder, key, "record.json")
        try:
            with open(path, "rb") as file:
                record = patch_shapes.check_record(json.load(file))
            os.fspath(record["site"])
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            said = f"{path} is not what hsops wrote ({type(error).__name__}: {error})"
            raise Refusal("damaged", said, path=path, folder=os.path.dirname(path), patch=name) from None
        yield record
