"""Which layers a data set's states are of, in each trainer's and engine's own counting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hsops.core.errors import UsageError
from hsops.payload.hsops_hs_dump.drafter_ids import SGLANG, drafter_ids, parsed, told
from hsops.payload.hsops_hs_dump.strategy import FIRST
from hsops.payload.hsops_hs_dump.strategy import LAST as NEWEST

KEY = "eagle_aux_hidden_state_layer_ids"
_ENGINE = re.compile(r"(?:sglang==(?P<sglang>\d+\.\d+\.\d+[\w.]*)|vllm(?:==[\w.]+)?)\Z")


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of the states.

    Args:
        boundaries: the state just before layer k; what speculators calls ``target_layer_ids``.
        output_layers: the same as the layers that they are outputs of, which is how SpecForge counts.
        by_engine: by engine and range of releases, what to write into the drafter's configuration; None: no ids say it.
        engine: the one that was named, else empty.
        ids: for that one.
        config: what goes into the drafter's ``config.json`` for it.
    """

    boundaries: tuple[int, ...]
    output_layers: tuple[int, ...]
    by_engine: dict[str, list[int] | None]
    engine: str = ""
    ids: tuple[int, ...] = ()
    config: dict[str, Any] | None = None


def layers(boundaries: Sequence[int], engine: str, trunk: str) -> Layers:
    """The layers, and the configuration for one engine where one is named.

    Args:
        boundaries: ascending.
        engine: ``sglang==0.5.12``, ``vllm``, or empty.
        trunk: the module in SGLang that defines the model's layers (``deepseek_v2``); empty: not known.

    Raises:
        UsageError: no such engine, or no ids are known to say these layers to it.
    """
    found = Layers(tuple(boundaries), tuple(k - 1 for k in boundaries), told(boundaries, trunk))
    if not engine:
        return found
    match = _ENGINE.match(engine)
    if match is None:
        raise UsageError(f"{engine!r} is no engine", fix=f"--engine sglang=={NEWEST}, or --engine vllm")
    name, version = ("sglang", match["sglang"]) if match["sglang"] else ("vllm", "")
    ids = drafter_ids(boundaries, name, version, trunk)
    if ids is None:
        raise _unknown(boundaries, engine, trunk)
    config: dict[str, Any] = {KEY: list(ids)}
    if name == "sglang":  # model_runner.py reads it one level down, 0.5.4 to 0.5.23
        config = {"eagle_config": {"use_aux_hidden_state": True, KEY: list(ids)}}
    return Layers(found.boundaries, found.output_layers, found.by_engine, engine, ids, config)


def trunk_of(metadata: Mapping[str, str]) -> str:
    """The trunk's module by a dump's own word; empty when it says none."""
    return metadata.get("trunk", "").partition(".")[0]


def is_new(engine: str) -> bool:
    """A release of SGLang after the last one that the ids were read from."""
    match = _ENGINE.match(engine)
    return bool(match and match["sglang"]) and parsed(engine) > parsed(NEWEST)


def _unknown(boundaries: Sequence[int], engine: str, trunk: str) -> UsageError:
    if trunk not in SGLANG:
        said = f"of the module {trunk!r}" if trunk else "that the dumps do not name"
        return UsageError(
            f"how {engine} counts the layers of a model {said} is not known",
            why=f"known are {', '.join(sorted(SGLANG))}, in SGLang {FIRST} to {NEWEST}",
            fix="--trunk MODULE: the file in sglang/srt/models that defines the layers; or no --engine",
        )
    return UsageError(f"no {KEY} make {engine} take the boundaries {list(boundaries)} of {trunk}", fix="no --engine")
