"""A pass's rows gathered where the model runs, and their way to host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .layout import DTYPES

CHUNK_ROWS = 1024  # of the pinned buffer: at 57,344 B a row, 56 MiB


class Stage:
    """``[rows, slots, H]`` filled one slot at a time while the model runs.

    Nothing here raises: what does not fit is kept in ``problem``.

    Args:
        rows: rows that every state must have.
        slots: states to come.
        keep: False on ranks that write nothing: they take part and keep nothing.
    """

    def __init__(self, rows: int, slots: int, *, keep: bool) -> None:
        self.problem = ""
        self._rows, self._slots, self._keep = rows, slots, keep
        self._seen: set[int] = set()
        self._states: torch.Tensor | None = None
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
        missing = set(range(self._slots)) - self._seen
        if missing or self._states is None:
            self.problem = f"states {sorted(missing)} of {self._slots} did not come by"
        elif token_ids.shape[0] != self._rows:
            self.problem = f"{token_ids.shape[0]} token ids for {self._rows} rows"
        else:
            self._ids = token_ids.to(torch.int64, copy=True)
            if self._states.is_cuda:
                self._ready = torch.cuda.Event(blocking=True)
                self._ready.record(torch.cuda.current_stream())

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
        if self._ready is not None:
            self._ready.synchronize()
        assert self._ids is not None
        with torch.inference_mode():
            return bytes(self._ids.cpu().numpy().astype("<i8", copy=False).tobytes())

    def chunks(self) -> Iterator[tuple[int, memoryview]]:
        """Rows in host memory, piece by piece."""
        states = self._held()
        with torch.inference_mode():
            if not states.is_cuda:
                yield 0, _view(states)
                return
            buffer = _pinned(states)
            side = _side_stream(states.device)
            for first in range(0, self._rows, CHUNK_ROWS):
                part = states[first : first + CHUNK_ROWS]
                with torch.cuda.stream(side):
                    buffer[: part.shape[0]].copy_(part, non_blocking=True)
                side.synchronize()
                yield first, _view(buffer[: part.shape[0]])

    def _take(self, slot: int, value: object) -> None:
        if not isinstance(value, torch.Tensor):
            self.problem = f"slot {slot}: a {type(value).__name__} came by, not a tensor"
        elif value.dim() != 2 or value.shape[0] != self._rows:
            self.problem = f"slot {slot}: shape {tuple(value.shape)}, {self._rows} rows were expected"
        elif str(value.dtype) not in DTYPES:
            self.problem = f"slot {slot}: dtype {value.dtype}"
        else:
            if self._states is None:
                self._states = value.new_empty((self._rows, self._slots, value.shape[1]))
            self._states[:, slot].copy_(value)
            self._seen.add(slot)

    def _held(self) -> torch.Tensor:
        assert self._states is not None
        return self._states


_BUFFERS: dict[tuple[Any, ...], torch.Tensor] = {}
_STREAMS: dict[Any, Any] = {}


def _pinned(like: torch.Tensor) -> torch.Tensor:
    """The writer thread's one pinned buffer. Pinning is slow, so it is done once."""
    key = (like.dtype, *like.shape[1:])
    if key not in _BUFFERS:
        with torch.inference_mode(False):  # an inference tensor could not be written again outside of it
            _BUFFERS[key] = torch.empty((CHUNK_ROWS, *like.shape[1:]), dtype=like.dtype, pin_memory=True)
    return _BUFFERS[key]


def _side_stream(device: Any) -> Any:
    if device not in _STREAMS:
        torch.cuda.set_device(device)
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]


def _view(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
