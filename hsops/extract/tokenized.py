"""Prompts as they were sent, for the commands that come later and know no tokenizer: ``--tokenized FILE``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from hsops.core.errors import UsageError
from hsops.core.events import Emit, Note
from hsops.core.files import sync_folder
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
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def check_place(path: Path, prompts: str, option: str) -> None:
    """Of a file that an option names, before anything is done.

    Raises:
        UsageError: it is the prompts themselves, or cannot be written.
    """
    source = Path(prompts).expanduser()
    if path.exists() and source.exists() and path.samefile(source):
        raise UsageError(f"{option} {path} is where the prompts are", fix="name another file")
    if path.is_dir() or not path.parent.is_dir():
        why = "is a folder" if path.is_dir() else "is in no folder that is there"
        raise UsageError(f"{option} {path} {why}", fix="name a file")
