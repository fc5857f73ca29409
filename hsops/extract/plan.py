"""What an extract has to send. Pure: the manifests on the hosts are the only state that says what is done.

A manifest names a sample only after its file is whole. What a client remembers is a second truth that can disagree with
the files: after a kill, on another machine, or when the dumps were removed. So the journal (``hsops.extract.journal``)
keeps only what no manifest can say, and nothing here asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hsops.core.dumps import FINAL_STATES, ITEM_BYTES, Sample, token_hash
from hsops.core.errors import Fault, UsageError
from hsops.core.inventory import PatchSpec, ServerSpec
from hsops.core.prompts import Prompt

HEADER_BYTES = 1024  # of a safetensors file with two or three tensors: a few hundred, rounded up


@dataclass(frozen=True, slots=True)
class Capture:
    """What the server captures: ``boundaries`` ascending, ``final`` as in the manifest."""

    boundaries: tuple[int, ...]
    final: str

    def __str__(self) -> str:
        return f"boundaries {', '.join(map(str, self.boundaries))}, final {self.final}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    Args:
        todo: prompts without a dump, in the file's order.
        done: dumps that are there already, of these very prompts.
        faults: prompts whose id has a dump of something else.
    """

    todo: tuple[Prompt, ...]
    done: tuple[Sample, ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class RowSize:
    """How large a dump becomes.

    Args:
        hidden_size: H.
        item_bytes: of one number.
    """

    hidden_size: int
    item_bytes: int

    def sample_bytes(self, tokens: int, capture: Capture) -> int:
        """tokens x states x H x item size, the token ids, and the header."""
        states = len(capture.boundaries) + FINAL_STATES[capture.final]
        return tokens * (states * self.hidden_size * self.item_bytes + 8) + HEADER_BYTES


def plan(
    prompts: Sequence[Prompt],
    samples: Mapping[str, Sample],
    capture: Capture,
    *,
    file: str,
    where: Callable[[Sample], str],
) -> Plan:
    """Compare prompts with the manifest.

    Args:
        prompts: with their tokens.
        samples: the manifest by id; a failed sample is tried again.
        capture: what is wanted.
        file: name of the prompts file, for faults.
        where: the folders that hold a sample, for faults.
    """
    todo, done, faults = [], [], []
    for prompt in prompts:
        sample = samples.get(prompt.id)
        if sample is None or not sample.ok:
            todo.append(prompt)
        elif why := difference(sample, prompt, capture):
            message = f"there is a dump of {prompt.id!r} already in {where(sample)}, {why}"
            faults.append(prompt.fault(file, "", message))
        else:
            done.append(sample)
    return Plan(tuple(todo), tuple(done), tuple(faults))


def difference(sample: Sample, prompt: Prompt, capture: Capture) -> str:
    """Why a dump is not the one of this prompt; empty when it is."""
    if sample.tokens != prompt.count:
        return f"with {sample.tokens} tokens; the prompt has {prompt.count}"
    if sample.token_hash and sample.token_hash != token_hash(prompt.tokens):
        return "with other token ids"
    found = Capture(sample.boundaries, sample.final)
    return "" if found == capture else f"with {found}; wanted are {capture}"


def capture_of(server: ServerSpec, patches: Mapping[str, PatchSpec]) -> Capture:
    """What the inventory says that the server captures.

    Raises:
        UsageError: nothing.
    """
    for name in server.patches:
        patch = patches[name]
        if patch.kind == "hs-dump":
            return Capture(patch.boundaries, patch.final)
    raise UsageError(
        f"server {server.name!r} captures nothing: none of its patches is of kind hs-dump",
        fix=f"inventory.yaml: servers.{server.name}.patches: [hs-dump]",
    )


def row_size(samples: Iterable[Sample]) -> RowSize | None:
    """What the newest dump tells; None when there is none yet."""
    found = None
    for sample in samples:
        if sample.ok and sample.dtype in ITEM_BYTES:
            found = RowSize(sample.hidden_size, ITEM_BYTES[sample.dtype])
    return found
