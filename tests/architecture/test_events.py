"""Events keep the keys of a JSON line as docs/reference/exit-codes.md describes them."""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import fields

import hsops
from hsops.core.events import Event

TAKEN = {"schema", "command", "event", "ok", "data", "errors"}


def subclasses(of: type) -> Iterator[type]:
    for one in of.__subclasses__():
        yield one
        yield from subclasses(one)


def test_no_event_writes_over_a_key_of_its_line():
    """`command` in an event line is the command that runs, whatever the event is about."""
    for package in ("cli", "demo", "launch", "playbook", "render", "extract", "fetch", "lab", "deploy", "verify"):
        path = [f"{hsops.__path__[0]}/{package}"]
        for module in pkgutil.iter_modules(path, f"hsops.{package}."):
            importlib.import_module(module.name)

    named = {event.__name__: TAKEN & {field.name for field in fields(event)} for event in subclasses(Event)}

    assert {"Act", "StepStarted", "LogPiece", "Progress"} <= set(named)
    assert not {name: keys for name, keys in named.items() if keys}
