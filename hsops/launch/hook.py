"""``method: hook`` on the command line: SGLang is told to call the payload's factory when a rank has its model."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hsops.core.inventory import Scalar

FLAG = "forward-hooks"
# the factory installs the capture and gives no hook, so the target matters to nobody; without one it is not called
SPEC = {"name": "hsops hs-dump", "target_modules": ["*"], "hook_factory": "hsops_hs_dump:hook"}
WHY = "method: hook: SGLang calls the payload's factory when a rank has its model"


def argument(given: Scalar | list[Scalar] | None) -> str:
    """The flag's value: the user's hooks, if any, and ours.

    Raises:
        ValueError: what the user gave is no JSON list.
    """
    hooks = json.loads(str(given)) if given is not None else []
    if not isinstance(hooks, list):
        raise ValueError(f"--{FLAG} takes a JSON list")
    return json.dumps([*hooks, SPEC], separators=(",", ":"))


def environment(folder: str, env: Mapping[str, str]) -> dict[str, str]:
    """Python's path with the payload first; then the user's, or the host's own.

    Args:
        folder: that the payload package lies in, on the host.
        env: what the inventory sets for the server.
    """
    return {"PYTHONPATH": f"{folder}:{env['PYTHONPATH']}" if env.get("PYTHONPATH") else f"{folder}{{:PYTHONPATH}}"}
