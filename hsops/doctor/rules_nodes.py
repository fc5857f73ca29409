"""Rules about hosts that one server is on together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hsops.doctor.findings import Facts, Finding


def unlike(server: str, hosts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Other code on one host: SGLang and Python packages that its ranks compute with.

    Args:
        server: its name; ``hosts``: what was seen on each, by node rank.
    """
    for what, level in (("SGLang", "blocker"), ("torch", "blocker"), ("driver", "warning")):
        found = {host: version for host, facts in hosts.items() if (version := _version(facts, what))}
        if len(set(found.values())) > 1:
            told = ", ".join(f"{version} on {host}" for host, version in found.items())
            why = "ranks of one server compute together: other code on one host ends in a hang, or in wrong numbers"
            yield Finding(level, "server", f"{server}: {what} is {told}", why, f"the same {what} on all its hosts")  # type: ignore[arg-type]


def _version(facts: Facts, what: str) -> str:
    if what == "SGLang":
        return str(((facts.look("hello") or {}).get("sglang") or {}).get("version") or "")
    if what == "torch":
        return str((facts.look("torch") or {}).get("version") or "")
    return facts.gpus[0].get("driver", "") if facts.gpus else ""
