"""Each error of the SSH libraries has its class here; a new one of theirs must be given a place."""

from __future__ import annotations

import importlib
import pkgutil
import socket
from collections.abc import Iterator
from types import ModuleType

import fabric.exceptions
import invoke.exceptions
import paramiko
import pytest

from hsops.core.errors import AuthenticationError, DeadlineError, HsopsError, UnreachableError
from hsops.remote.errors import TABLE, translate
from hsops.remote.target import Target, parse

WINDOWS = {"_winapi", "win_pageant", "win_openssh"}


@pytest.fixture(scope="module")
def target() -> Target:
    """Some host."""
    return parse("box", "gpu-box", ["hostname 10.0.0.7", "port 2222", "user root"])


def exceptions(package: ModuleType) -> Iterator[type[BaseException]]:
    """Every exception class that a package defines."""
    names = [m.name for m in pkgutil.iter_modules(package.__path__)] if hasattr(package, "__path__") else []
    modules = [package, *(importlib.import_module(f"{package.__name__}.{n}") for n in names if n not in WINDOWS)]
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == module.__name__:
                yield value


@pytest.mark.parametrize("package", [paramiko, fabric.exceptions, invoke.exceptions], ids=lambda p: p.__name__)
def test_every_exception_of_the_libraries_is_in_the_table(package: ModuleType) -> None:
    """By name, not by way of a base class."""
    found = set(exceptions(package))

    assert len(found) >= 3
    assert sorted(kind.__qualname__ for kind in found - set(TABLE)) == []


@pytest.mark.parametrize("kind", list(TABLE), ids=lambda k: f"{k.__module__}.{k.__qualname__}")
def test_every_entry_makes_an_error_with_its_host(kind: type[BaseException], target: Target) -> None:
    """Whatever the exception's own constructor wants."""
    silent = type("Silent", (kind,), {"__init__": lambda self: None, "__str__": lambda self: ""})

    error = translate(silent(), target)

    assert isinstance(error, HsopsError)
    assert (error.host, error.exit_code) == ("box", 5)
    assert error.message


@pytest.mark.parametrize(
    "error, kind, words",
    [
        (socket.gaierror(-2, "unknown"), UnreachableError, "the name 10.0.0.7 does not resolve"),
        (ConnectionRefusedError(111, "refused"), UnreachableError, "nothing listens on 10.0.0.7:2222"),
        (TimeoutError(), DeadlineError, "10.0.0.7:2222 did not answer in time"),
        (OSError(113, "No route to host"), UnreachableError, "No route to host"),
        (EOFError(), UnreachableError, "10.0.0.7 closed the connection"),
        (paramiko.ChannelException(1, "nope"), UnreachableError, "10.0.0.7 refused another session"),
        (paramiko.BadAuthenticationType("x", ["password"]), AuthenticationError, "root@10.0.0.7:2222 accepted none"),
    ],
)
def test_the_class_decides_and_the_host_is_named(
    error: BaseException, kind: type[HsopsError], words: str, target: Target
) -> None:
    """Exactly that class, with the address in the message."""
    translated = translate(error, target)

    assert type(translated) is kind
    assert words in translated.message


def test_our_own_errors_pass_unchanged(target: Target) -> None:
    """A policy that refuses a key inside paramiko says what it said."""
    mine = DeadlineError("late")

    assert translate(mine, target) is mine


def test_a_fault_of_ours_is_not_dressed_up(target: Target) -> None:
    """A programming error keeps its traceback."""
    with pytest.raises(ZeroDivisionError):
        translate(ZeroDivisionError(), target)
