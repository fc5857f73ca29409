"""What the hs-dump patch needs of the command line, by SGLang version. The ranks check it again (hello files)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hsops.core.inventory import Scalar
from hsops.core.versions import within

Args = Mapping[str, Scalar | list[Scalar]]


@dataclass(frozen=True, slots=True)
class Need:
    """A flag that must be there (``value`` true) or must not be there, in SGLang ``since`` .. ``until``."""

    flag: str
    there: bool
    why: str
    since: str = ""
    until: str = ""
    fine: str = ""  # a value of a forbidden flag that is harmless


_GRAPH = "a prefill replayed as a CUDA graph runs no Python, so nothing would be captured"
_SCATTERED = "rows are scattered over the ranks"
HS_DUMP = (
    Need("disable-radix-cache", True, "cached tokens are not computed again, so they would give no rows"),
    Need("disable-piecewise-cuda-graph", True, _GRAPH, since="0.5.10", until="0.5.13"),
    Need("disable-prefill-cuda-graph", True, _GRAPH, since="0.5.14"),
    Need("enable-piecewise-cuda-graph", False, _GRAPH, until="0.5.13"),
    Need("enable-mixed-chunk", False, "decoding requests are mixed into prefill batches"),
    Need("enable-two-batch-overlap", False, "layers run outside the loop that is captured"),
    Need("enable-pdmux", False, "prefill is split over a path of its own"),
    Need("enable-dp-attention", False, "each rank holds other rows"),
    Need("moe-a2a-backend", False, _SCATTERED, fine="none"),
    Need("moe-dense-tp-size", False, _SCATTERED),
    Need("enable-layernorm-sp", False, _SCATTERED),
    Need("speculative-algorithm", False, "verification passes look like prefill"),
    Need("pp-size", False, "no rank holds all layers", fine="1"),
    Need("pipeline-parallel-size", False, "no rank holds all layers", fine="1"),
)


def missing(args: Args, sglang: str) -> dict[str, str]:
    """Flags to add and why."""
    return {n.flag: n.why for n in _due(sglang) if n.there and n.flag not in args}


def contradictions(args: Args, sglang: str) -> dict[str, str]:
    """Flags that are set otherwise than needed, and why it matters."""
    found = {}
    for need in _due(sglang):
        given = args.get(need.flag)
        if given is None:
            continue
        if need.there and given is False:
            found[need.flag] = f"false, but hs-dump needs it: {need.why}"
        elif not need.there and given is not False and str(given) != need.fine:
            found[need.flag] = f"not together with hs-dump: {need.why}"
    return found


def _due(sglang: str) -> tuple[Need, ...]:
    return tuple(need for need in HS_DUMP if within(sglang, need.since, need.until))
