"""From the stanza to a wrapped model class."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
from typing import Any

from . import settings as configuration
from .hello import Hello, say
from .requests import Requests
from .strategy import COMMUNICATOR_FILE, MODEL_CLASS, choose

INSTALLED = "_hsops_hs_dump"


def install(module: dict[str, Any]) -> None:
    """Wrap the model class in ``module``; on anything unexpected stay inert and say so."""
    try:
        settings = configuration.load(os.environ)
    except (OSError, ValueError, KeyError, TypeError) as error:
        say(f"NOT capturing: config.json is missing or damaged ({error}): run hsops deploy again")
        return
    hello = Hello(settings, _version())
    try:
        _install(module, settings, hello)
    except Exception as error:  # noqa: BLE001 - SGLang would swallow it and serve another model class
        hello.reasons.append(f"{type(error).__name__}: {error}")
    if hello.reasons:
        hello.write()


def _install(module: dict[str, Any], settings: configuration.Settings, hello: Hello) -> None:
    choice = choose(_text(module["__file__"]), _text(_beside(module["__file__"])))
    hello.strategy, hello.facts["looked_for"] = choice.strategy, choice.looked_for
    if not choice.strategy:
        hello.reasons.append(f"this SGLang's code has a shape that is not known; missing: {choice.missing}")
        return
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    from .capture import Capture
    from .process import this_process
    from .stage import Stage, prepare

    model_class = module[MODEL_CLASS]
    if INSTALLED in model_class.__dict__:
        return
    requests = Requests()
    requests.follow(ForwardBatch)
    _wrap(model_class, Capture(settings, hello, requests, new_stage=Stage, ask=this_process, prepare=prepare))
    setattr(model_class, INSTALLED, settings.identity)


def _wrap(model_class: Any, capture: Any) -> None:
    forward, initialise = model_class.forward, model_class.__init__
    place = list(inspect.signature(forward).parameters).index("forward_batch") - 1  # without self

    @functools.wraps(forward)
    def wrapped_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = args[place] if len(args) > place else kwargs.get("forward_batch")
        return capture.forward(forward, self, batch, args, kwargs)

    @functools.wraps(initialise)
    def wrapped_init(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        capture.attach(self)

    model_class.forward = wrapped_forward
    model_class.__init__ = wrapped_init


def _beside(model_file: str) -> str:
    """The communicator's file in the tree that ``model_file`` lies in."""
    models = os.path.dirname(os.path.abspath(model_file))
    return os.path.join(models, "..", "layers", os.path.basename(COMMUNICATOR_FILE))


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _version() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
