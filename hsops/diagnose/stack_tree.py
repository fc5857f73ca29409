"""Stacks of all ranks, at two times, laid over each other as one tree: where they part is where to look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hsops.diagnose.stacks import Frame, Stack, own_frames

Look = tuple[int, int]  # a rank, and which of its looks


@dataclass(frozen=True, slots=True)
class Node:
    """A frame and who was in it.

    Args:
        frame: by its function; the line is one of those seen.
        looks: (rank, number of the look).
        below: frames called from it, the most visited first.
    """

    frame: Frame
    looks: frozenset[Look]
    below: tuple[Node, ...]

    @property
    def who(self) -> str:
        """``TP0-TP6`` in both looks; ``TP7 (first look)`` where it was there once."""
        times = {rank: sorted(at for one, at in self.looks if one == rank) for rank, _ in self.looks}
        always = sorted(rank for rank, at in times.items() if len(at) > 1)
        names = ("first", "second")
        once = [f"TP{rank} ({names[at[0] > 0]} look)" for rank, at in sorted(times.items()) if len(at) == 1]
        return ", ".join([*_spans(always), *once])


def tree(stacks: Mapping[int, Sequence[Stack]]) -> tuple[Node, ...]:
    """The prefix tree of own frames, from the outermost.

    Args:
        stacks: of each rank, one working thread a look.
    """
    paths = {
        (rank, at): tuple(reversed(own_frames(stack)))
        for rank, looks in stacks.items()
        for at, stack in enumerate(looks)
        if own_frames(stack)
    }
    return _below(paths, 0)


def lines(nodes: Sequence[Node], indent: str = "") -> Iterator[str]:
    """The tree for people. A chain that nobody leaves is one line, its innermost frame."""
    for node in nodes:
        while len(node.below) == 1 and node.below[0].looks == node.looks:
            node = node.below[0]  # noqa: PLW2901 - down the chain
        yield f"{indent}{node.who}: {node.frame}"
        yield from lines(node.below, indent + "  ")


def _below(paths: Mapping[Look, tuple[Frame, ...]], depth: int) -> tuple[Node, ...]:
    groups: dict[tuple[str, str], dict[Look, tuple[Frame, ...]]] = {}
    for look, path in paths.items():
        if depth < len(path):
            groups.setdefault((path[depth].name, path[depth].file), {})[look] = path
    found = [
        Node(next(iter(group.values()))[depth], frozenset(group), _below(group, depth + 1)) for group in groups.values()
    ]
    return tuple(sorted(found, key=lambda node: (-len(node.looks), min(node.looks))))


def _spans(ranks: Sequence[int]) -> Iterator[str]:
    """``TP0-TP6``."""
    start = 0
    for at in range(1, len(ranks) + 1):
        if at == len(ranks) or ranks[at] != ranks[at - 1] + 1:
            first, last = ranks[start], ranks[at - 1]
            yield f"TP{first}" if first == last else f"TP{first}-TP{last}"
            start = at
