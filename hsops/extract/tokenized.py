"""Prompts as they were sent, for the commands that come later and know no tokenizer: ``--tokenized FILE``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from hsops.core.errors import UsageError
from hsops.core.events import Emit, Note
from hsops.core.files import make_durable, output_file, sync_folder
from hsops.core.prompt_tables import split_files
from hsops.core.prompts import Prompt


def keep(path: Path | None, prompts: Sequence[Prompt], emit: Emit, *, made: bool) -> None:
    """Write the prompts as JSONL of ``id``, ``input_ids`` and ``loss_mask``, whole or not at all.

    Args:
        path: where; None: nowhere.
        prompts: with their tokens.
        emit: told that masks are kept nowhere.
        made: masks were made of conversations.
    """
    if path is None:
        if made:
            emit(Note("the loss masks of these conversations are not kept: --tokenized FILE keeps them for export"))
        return
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for prompt in prompts:
                mask = {"loss_mask": list(prompt.mask)} if prompt.mask else {}
                line = {"id": prompt.id, "input_ids": prompt.ids().tolist(), **mask}
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
            make_durable(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def check_places(tokenized: Path | None, failures: Path | None, prompts: str) -> tuple[Path | None, Path | None]:
    """Of the files that ``--tokenized`` and ``--failures`` name, before anything is done; links followed.

    Raises:
        UsageError: they are one file, or the prompts themselves, or cannot be written.
    """
    first = _check(tokenized, prompts, "--tokenized")
    second = _check(failures, prompts, "--failures")
    if first and second and _same(first, second):
        raise UsageError(f"--tokenized and --failures are one file: {first}", fix="name two")
    return first, second


def _check(path: Path | None, prompts: str, option: str) -> Path | None:
    if path is None:
        return None
    source = Path(prompts).expanduser()
    whole = Path(os.path.realpath(path))
    sources = [source, *([] if source.exists() else split_files(source))]
    if any(_same(whole, one) for one in sources) or (source.is_dir() and source.resolve() in whole.parents):
        raise UsageError(f"{option} {path} is where the prompts are", fix="name another file")
    return output_file(path, option)


def _same(one: Path, other: Path) -> bool:
    """Also by two names of one file."""
    return one == other.resolve() or (one.exists() and other.exists() and one.samefile(other))
