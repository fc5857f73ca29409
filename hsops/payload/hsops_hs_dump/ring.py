"""The way from the device to host memory. The only module, beside the event in ``stage``, that needs a GPU to be run.

A pool of pinned memory is taken when the capture begins, because pinning a GiB takes most of a second, and is carved
into slots. Copies are contiguous (a strided copy into pinned memory blocks the thread: 463 ms a pass) and run on a
stream of their own. One ring serves all writers of a process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import torch

from .blocks import Block, Slots

SLOT_BYTES = 64 << 20  # 1,170 rows of 57,344 B; a power of two, to which torch rounds pinned memory up anyhow


class Ring:
    """Pinned slots of one device.

    Args:
        device: where the rows come from.
        count: slots.

    Raises:
        RuntimeError: so much memory cannot be pinned.
    """

    def __init__(self, device: Any, count: int) -> None:
        self._device = device
        with torch.inference_mode(False):  # an inference tensor could not be written again outside of it
            # device: a model is built with its GPU as torch's default, and that is when a ring is made
            self._pool = torch.empty(count * SLOT_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
        self._bytes = memoryview(self._pool.numpy())
        self._slots = Slots(count)
        self._side = torch.cuda.Stream(device)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """A small tensor in host memory. On the side stream: the main one has later passes queued already."""
        with torch.inference_mode(), torch.cuda.stream(self._side):
            return tensor.cpu()

    def blocks(self, states: Sequence[torch.Tensor], tick: Callable[[], None]) -> Generator[Block, None, None]:
        """The rows of all ``states`` [rows, ...], slot by slot. Ends only when the device's memory is read."""
        rows = states[0].shape[0]
        most, copied = SLOT_BYTES // sum(t[0].numel() * t.element_size() for t in states), None
        try:
            for first in range(0, rows, most):
                count = min(most, rows - first)
                slot = self._slots.take(tick)
                give = partial(self._slots.give, slot)
                try:
                    views, copied = self._copy([t[first : first + count] for t in states], slot)
                except BaseException:
                    give()
                    raise
                yield Block(first, count, views, wait=partial(self._wait, copied), freed=give)
        finally:
            if copied is not None:
                self._wait(copied)  # copies run in order: the last one's end is everybody's

    def _copy(self, parts: Sequence[torch.Tensor], slot: int) -> tuple[list[memoryview], Any]:
        end, views = slot * SLOT_BYTES, list[memoryview]()
        with torch.inference_mode(), torch.cuda.stream(self._side):
            for part in parts:
                begin, end = end, end + part.numel() * part.element_size()
                self._pool[begin:end].view(part.dtype).view(part.shape).copy_(part, non_blocking=True)
                views.append(self._bytes[begin:end])
            copied = torch.cuda.Event(blocking=True)
            copied.record(self._side)
        return views, copied

    def _wait(self, event: Any) -> None:
        with torch.cuda.device(self._device):  # a thread's own default is GPU 0, whatever the rank
            event.synchronize()


_RINGS: dict[Any, Ring] = {}
_LOCK = threading.Lock()


def ring_for(device: Any, count: int) -> Ring:
    """This process's ring for a device; made at the first call, which says how many slots it has."""
    with _LOCK:
        if device not in _RINGS:
            _RINGS[device] = Ring(device, count)
        return _RINGS[device]
