"""A pass's rows gathered where the model runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

import torch

from .blocks import POLL_S, Block
from .layout import DTYPES
from .ring import Ring, ring_for
from .settings import RING_SLOTS
from .trunk import gpu_of


class Stage:
    """``[rows, slots, H]`` filled one slot at a time while the model runs, and perhaps ``[rows, H]`` as the last one.

    Nothing here raises: what does not fit is kept in ``problem``.

    Args:
        rows: rows that every state must have.
        slots: states to come.
        last: one more comes, with the number ``slots``: it goes into a tensor of its own.
        keep: False on ranks that write nothing: they take part and keep nothing.
    """

    def __init__(self, rows: int, slots: int, *, last: bool, keep: bool) -> None:
        self.problem = ""
        self.last = last
        self._rows, self._slots, self._keep = rows, slots, keep
        self._seen: set[int] = set()
        self._states: torch.Tensor | None = None
        self._last: torch.Tensor | None = None
        self._ids: torch.Tensor | None = None
        self._ready: Any = None

    def take(self, slot: int, value: object) -> None:
        """Copy one state now: later layers write into the same memory."""
        if not self._keep or self.problem:
            return
        try:
            self._take(slot, value)
        except Exception as error:  # noqa: BLE001 - out of memory, for one; it must not reach the model's forward
            self.problem = f"slot {slot}: {type(error).__name__}: {error}"

    def seal(self, token_ids: torch.Tensor) -> None:
        """After the forward pass: nothing is missing, and the token ids come along."""
        if not self._keep or self.problem:
            return
        count = self._slots + self.last
        missing = set(range(count)) - self._seen
        if missing or self._states is None:
            self.problem = f"states {sorted(missing)} of {count} did not come by"
        elif token_ids.shape[0] != self._rows:
            self.problem = f"{token_ids.shape[0]} token ids for {self._rows} rows"
        else:
            self._ids = token_ids.to(torch.int64, copy=True)
            if self._states.is_cuda:
                self._ready = torch.cuda.Event(blocking=True)
                self._ready.record(torch.cuda.current_stream(self._states.device))

    @property
    def dtype(self) -> str:
        """safetensors' name of the states' dtype."""
        return DTYPES[str(self._held().dtype)][0]

    @property
    def item(self) -> int:
        """Bytes of one element."""
        return DTYPES[str(self._held().dtype)][1]

    @property
    def hidden(self) -> int:
        """H."""
        return int(self._held().shape[2])

    def token_bytes(self) -> bytes:
        """The token ids; waits until the pass is computed."""
        ids = self._ids
        assert ids is not None
        if self._ready is not None:
            with torch.cuda.device(ids.device):  # a thread's own default is GPU 0, whatever the rank
                self._ready.synchronize()
            ids = self._ring().fetch(ids)
        with torch.inference_mode():
            return bytes(ids.numpy().astype("<i8", copy=False).tobytes())

    def blocks(self, tick: Callable[[], None]) -> Generator[Block, None, None]:
        """Rows in host memory, in order. Ends when nothing of the stage is needed any more."""
        states = [self._held()] if self._last is None else [self._held(), self._last]
        if states[0].is_cuda:
            yield from self._ring().blocks(states, tick)
            return
        read = threading.Event()
        yield Block(0, self._rows, [_view(tensor) for tensor in states], freed=read.set)
        while not read.wait(POLL_S):
            tick()

    def _take(self, slot: int, value: object) -> None:
        if not isinstance(value, torch.Tensor):
            self.problem = f"slot {slot}: a {type(value).__name__} came by, not a tensor"
        elif value.dim() != 2 or value.shape[0] != self._rows:
            self.problem = f"slot {slot}: shape {tuple(value.shape)}, {self._rows} rows were expected"
        elif str(value.dtype) not in DTYPES:
            self.problem = f"slot {slot}: dtype {value.dtype}"
        else:
            self._put(slot, value)
            self._seen.add(slot)

    def _put(self, slot: int, value: torch.Tensor) -> None:
        if self._states is None:
            self._states = value.new_empty((self._rows, self._slots, value.shape[1]))
        if (value.dtype, value.shape[1]) != (self._states.dtype, self._states.shape[2]):
            self.problem = f"slot {slot}: {value.dtype} of {value.shape[1]}, the others are of another kind"
        elif slot == self._slots:
            self._last = value.clone(memory_format=torch.contiguous_format)
        else:
            self._states[:, slot].copy_(value)

    def _held(self) -> torch.Tensor:
        assert self._states is not None
        return self._states

    def _ring(self) -> Ring:
        return ring_for(self._held().device, RING_SLOTS)


def prepare(model: Any, slots: int) -> None:
    """Take the ring's memory now, when the model is built, and not in the first pass.

    Raises:
        RuntimeError: so much memory cannot be pinned.
    """
    device = gpu_of(model)
    if device is not None:
        ring_for(device, slots)


def _view(tensor: torch.Tensor) -> memoryview:
    with torch.inference_mode():
        return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
