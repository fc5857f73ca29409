"""Which dumps become which rows, and whether they can. Pure: it looks at values only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hsops.core.dumps import Sample
from hsops.core.errors import BadDataError, ConfigError, Fault, UsageError
from hsops.core.prompts import Prompt, shorten


@dataclass(frozen=True, slots=True)
class Row:
    """One sample of the data set.

    Args:
        number: in the names of files, from 0.
        sample: its dump.
        tokens: what its prompt has, as ``token_bytes``; None when there is nothing to compare with.
        mask: one byte a token, 0 or 1; empty: learn from every token.
    """

    number: int
    sample: Sample
    tokens: bytes | None
    mask: bytes


@dataclass(frozen=True, slots=True)
class Needs:
    """What a trainer's format needs of every dump.

    Args:
        name: of the format.
        final: ``pre-norm`` or ``post-norm``: which final state it learns from.
        boundaries: how many, exactly; 0: any number.
        gaps: numbers may be left out, as rows are told by their files alone.
    """

    name: str
    final: str
    boundaries: int
    gaps: bool


def rows(
    dumps: Mapping[str, Sample], prompts: Sequence[Prompt] | None, leave_out: Collection[str], *, gaps: bool
) -> list[Row]:
    """The rows, in the prompts' order, or without prompts by id: the same folder always gives the same rows.

    Args:
        dumps: by id.
        prompts: which, in which order, with which masks; None: all, learning from every token.
        leave_out: ids that get no row.
        gaps: what has no row keeps its number, so that no later file is named anew.
    """
    order = [Prompt(id_, 0, b"") for id_ in sorted(dumps)] if prompts is None else prompts
    found = list[Row]()
    for place, prompt in enumerate(order):
        if prompt.id in dumps and prompt.id not in leave_out:
            number = place if gaps else len(found)
            found.append(Row(number, dumps[prompt.id], prompt.tokens or None, prompt.mask))
    return found


def masked(prompts: tuple[Prompt, ...] | None, file: str, mask: str) -> tuple[Prompt, ...] | None:
    """The prompts with the masks that count: nobody learns from every token without having said so.

    Args:
        prompts: as read from ``file``.
        file: its name.
        mask: ``prompts``: theirs; ``all``: none, every token counts.

    Raises:
        UsageError: there are no prompts.
        ConfigError: some of them have no mask.
    """
    if mask == "all":
        return None if prompts is None else tuple(replace(p, mask=b"") for p in prompts)
    fix = "loss_mask beside input_ids, a list of 0 and 1 for each token; or --mask all: learn from every token"
    if prompts is None:
        raise UsageError("which tokens shall the drafter learn from?", fix=f"--prompts FILE with {fix}")
    if any(p.messages for p in prompts):
        fix = "hsops extract PROMPTS --tokenized FILE makes the masks of conversations: export --prompts FILE"
    if bare := [p.fault(file, p.id, "no loss_mask") for p in prompts if not p.mask]:
        none = len(bare) == len(prompts) > 1
        raise ConfigError([Fault(file, 0, 0, "", "no prompt has a loss_mask")] if none else shorten(bare), fix=fix)
    return prompts


def check_dumps(dumps: Sequence[Sample], needs: Needs) -> Sample:
    """Dumps that go into one data set are alike, and have what the trainer needs; returns one of them.

    Raises:
        BadDataError: there are none, they differ, or lack something.
    """
    if not dumps:
        raise BadDataError("there are no dumps to export", fix="hsops extract PROMPTS, then hsops fetch --to DIR")
    first = dumps[0]
    for other in dumps:
        for what in ("boundaries", "dtype", "hidden_size"):
            if getattr(first, what) != getattr(other, what):
                raise _differ(first, other, what)
        if other.final not in (needs.final, "both"):
            raise _lacks(other, needs)
    if needs.boundaries not in (0, len(first.boundaries)):
        raise BadDataError(
            f"{needs.name} learns from exactly {needs.boundaries} boundaries, the dumps have {list(first.boundaries)}",
            fix=f"name {needs.boundaries} in patches.<name>.boundaries; hsops deploy, launch --replace, extract again",
        )
    return first


def _differ(first: Sample, other: Sample, what: str) -> BadDataError:
    said = " and ".join(f"{s.file} has {getattr(s, what)!r}" for s in (first, other))
    return BadDataError(
        f"the dumps are not alike: {what} of {said}",
        why="a drafter learns from one kind of states; mixed ones train without an error, and badly",
        fix="--prompts FILE that names the ones you mean, or another DIR",
    )


def _lacks(sample: Sample, needs: Needs) -> BadDataError:
    where = {"pre-norm": "before the last norm", "post-norm": "after the last norm"}[needs.final]
    held = {"none": "no final state", "pre-norm": "the state before it", "post-norm": "the state after it"}
    return BadDataError(
        f"{needs.name} learns from the final state {where}; {sample.file} has {held[sample.final]}",
        why="the other state trains without an error, and the drafter is bad",
        fix="patches.<name>.final: both in inventory.yaml; hsops deploy, hsops launch --replace --wait-healthy, then "
        "hsops extract, which names the old dumps that are in its way",
    )
