"""What the hs-dump patch needs of the command line, in the SGLang that is there. The ranks check it again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hsops.core.inventory import Scalar
from hsops.core.versions import numbers, within
from hsops.payload.hsops_hs_dump.rules import GRAPH_CONFIG, GRAPH_WHY, GRAPHS_OFF, GRAPHS_SAID, RULES, GraphFlag

Args = Mapping[str, Scalar | list[Scalar]]
# what the host is asked for: which of these its SGLang knows
ADDED = (*(rule.flag for rule in RULES if rule.needed), *(graph.flag for graph in GRAPHS_OFF))
OWN_ENV = ("SGLANG_HS_DUMP_DIR", "SGLANG_HS_RUN")  # hsops sets these


@dataclass(frozen=True, slots=True)
class Installed:
    """The SGLang on the host.

    Args:
        version: "" when it does not tell.
        flags: those of ``ADDED`` that its code has; None when the code was not read: then the version decides.
    """

    version: str
    flags: frozenset[str] | None = None

    def has(self, flag: str, since: str, until: str) -> bool:
        """It takes ``--flag``, which the releases ``since`` to ``until`` take."""
        if self.flags is not None:
            return flag in self.flags
        return bool(numbers(self.version)) and within(self.version, since, until)


def missing(args: Args, sglang: Installed) -> dict[str, str]:
    """Flags to add, and why."""
    found = {rule.flag: rule.why for rule in RULES if rule.needed and rule.flag not in args}
    if args.get("device") != "cpu" and not _says_prefill_graphs_are_off(args, sglang):
        way = next((graph for graph in GRAPHS_OFF if sglang.has(graph.flag, graph.since, graph.until)), None)
        if way:
            found[way.flag] = GRAPH_WHY
    return found


def contradictions(args: Args) -> dict[str, str]:
    """Flags that are set otherwise than needed, and why it matters. In any release: an unknown flag helps nobody."""
    found = {}
    for rule in RULES:
        for flag in (rule.flag, *rule.flags):
            given = args.get(flag)
            if rule.needed and given is False:
                found[flag] = f"false, but the hs-dump patch needs it: {rule.why}"
            elif not rule.needed and _is_set(given) and str(given) not in {str(value) for value in rule.fine}:
                found[flag] = f"not together with the hs-dump patch: {rule.why}"
    return {**found, **(dict(_graphs_wanted(args)) if args.get("device") != "cpu" else {})}


def _is_set(given: object) -> bool:
    """``false`` is no flag at all."""
    return given is not None and given is not False


def _says_prefill_graphs_are_off(args: Args, sglang: Installed) -> bool:
    if _backend_in_config(args) == "disabled":
        return True
    return any(args[g.flag] in g.off and _means_that(g, sglang) for g in GRAPHS_SAID if g.flag in args)


def _means_that(graph: GraphFlag, sglang: Installed) -> bool:
    return within(sglang.version, graph.since, graph.until) if numbers(sglang.version) else graph in GRAPHS_OFF


def _graphs_wanted(args: Args) -> Iterator[tuple[str, str]]:
    for graph in GRAPHS_SAID:
        given = args.get(graph.flag)
        if given is False and graph in GRAPHS_OFF:
            yield graph.flag, f"false, but the hs-dump patch needs it: {GRAPH_WHY}"
        elif _is_set(given) and given not in graph.off:
            yield graph.flag, f"not together with the hs-dump patch: {GRAPH_WHY}"
    if _backend_in_config(args) not in ("", "disabled"):
        yield GRAPH_CONFIG.flag, f"its prefill is not together with the hs-dump patch: {GRAPH_WHY}"


def _backend_in_config(args: Args) -> str:
    """What ``cuda-graph-config`` says of the prefill; "" when it says nothing, or no JSON."""
    try:
        config = json.loads(str(args.get(GRAPH_CONFIG.flag, "")))
        return str(config["prefill"]["backend"])
    except (ValueError, KeyError, TypeError):
        return ""
