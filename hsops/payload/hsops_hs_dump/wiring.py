"""From the stanza in the model registry to a wrapped trunk.

Nothing is known of a model before it is built, so the class that the registry resolves is only watched: when its
constructor is through, the trunk is looked for in what it built, and that one instance is wrapped.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import settings as configuration
from .hello import Hello, say
from .settings import Settings

INSTALLED = "_hsops_hs_dump"
RESOLVE = "resolve_model_cls"
FRAMES = 4
DRAFT = re.compile(r"nextn|mtp|multitoken|eagle|draft|dflash|dspark|medusa", re.IGNORECASE)


def install(module: dict[str, Any]) -> None:
    """Watch the registry in ``module``; on anything unexpected stay inert and say so."""
    installer = new_installer()
    if installer is None:
        return
    try:
        registry = module["ModelRegistry"]
        if INSTALLED not in vars(registry):
            _watch(registry, installer)
    except Exception as error:  # noqa: BLE001 - an exception here would end the server, or be swallowed
        installer.refuse(f"SGLang's model registry has a shape that is not known ({type(error).__name__}: {error})")


def hooked(frame: FrameType | None) -> None:
    """Wrap the model of the function that calls the ``--forward-hooks`` factories, when a rank has loaded it.

    A factory gets its configuration and nothing else, but what calls it is ``register_forward_hooks(model, specs)``,
    and does so alike in all of 0.5.6 to 0.5.23. So the model is taken from the caller's frame. A search of all objects
    could find a draft's model or one that is given up; a hook of the first forward would come after launch wants its
    hello, and not at all where SGLang calls ``model.forward`` itself.
    """
    if not os.environ.get(configuration.DUMP_DIR):
        return
    installer = new_installer()
    for _ in range(FRAMES):
        model = frame.f_locals.get("model") if frame else None
        if hasattr(model, "named_modules") and installer:
            installer.built(model)
            return
        frame = frame.f_back if frame else None
    if installer:
        installer.refuse("--forward-hooks calls its factories from a place that is not known: no model there")


@functools.cache
def new_installer() -> Installer | None:
    """What wraps this process's models; None when there is no configuration, which the log then says."""
    try:
        return Installer(configuration.load(os.environ))
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = f"{type(error).__name__}: {error}"
        say(f"NOT capturing: {said} (hsops deploy writes config.json; SGLANG_HS_* come from the server's env)")
        return None


class Installer:
    """Looks at each model that this process has built. Nothing of it raises.

    Args:
        settings: what was deployed.
        new: makes the process's capture, when there is a trunk for it.
    """

    def __init__(self, settings: Settings, new: Callable[[Settings, Hello], Any] | None = None) -> None:
        self._settings, self._new = settings, new or _new_capture
        self._hello = Hello(settings, _version())
        self._capture: Any = None

    def refuse(self, reason: str) -> None:
        """This process does not capture."""
        self._hello.reasons.append(reason)
        self._hello.write()

    def built(self, model: Any) -> None:
        """A model is there: wrap its trunk and say hello. A second model, such as a draft, takes nothing away."""
        try:
            reason = self._refusal(model)
        except Exception as error:  # noqa: BLE001 - a model's construction must never fail because of us
            reason = f"{type(error).__name__}: {error}"
        if not reason:
            return
        if self._capture is None:
            self.refuse(reason)
        else:
            say(f"a further model is not captured: {reason}")

    def _refusal(self, model: Any) -> str:
        """Wraps the trunk; else the reason why not."""
        from .trunk import trunks

        name = type(model).__name__
        if DRAFT.search(name):
            return f"{name} is a draft model"
        found = trunks(model)
        fitting = [trunk for trunk in found if trunk.choice.strategy]
        if self._capture is None:
            self._hello.facts["model"] = name
            self._hello.facts["looked_for"] = {trunk.name: trunk.choice.looked_for for trunk in found}
        if not found:
            return f"{name} has no part with layers, a norm and a forward that takes forward_batch"
        if not fitting:
            missing = "; ".join(f"{trunk.name}: not found: {trunk.choice.missing}" for trunk in found)
            return f"{name} has a shape that is not known ({missing})"
        if len(fitting) > 1:
            return f"{name} has several trunks: {', '.join(trunk.name for trunk in fitting)}"
        self._wrap(fitting[0])
        return ""

    def _wrap(self, trunk: Any) -> None:
        from .taps import argument

        module = trunk.module
        if INSTALLED in module.__dict__:
            return
        capture = self._capture or self._new(self._settings, self._hello)
        self._hello.strategy, self._hello.facts["trunk"] = trunk.choice.strategy, trunk.name
        self._hello.facts["looked_for"] = trunk.choice.looked_for
        forward = type(module).forward
        batch_of = argument(forward, "forward_batch")

        @functools.wraps(module.forward)  # bound: its signature has no self
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return capture.forward(forward, module, batch_of(args, kwargs), args, kwargs)

        capture.attach(module)
        self._capture = capture
        module.__dict__.update({"forward": wrapped, INSTALLED: True})


def _new_capture(settings: Settings, hello: Hello) -> Any:
    """The capture of a process that runs SGLang."""
    from sglang.srt.managers import schedule_batch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    from .capture import Capture
    from .process import this_process
    from .requests import Requests
    from .stage import Stage, prepare

    requests = Requests()
    requests.follow(ForwardBatch)
    requests.follow_scheduler(schedule_batch)
    return Capture(settings, hello, requests, new_stage=Stage, ask=this_process, prepare=prepare)


def _watch(registry: Any, installer: Installer) -> None:
    """Whatever class the registry resolves from now on tells the installer of each instance."""
    resolve = getattr(registry, RESOLVE)
    building: list[Any] = []

    @functools.wraps(resolve)
    def resolved(*args: Any, **kwargs: Any) -> Any:
        found = resolve(*args, **kwargs)
        try:
            _follow(found[0], building, installer)
        except Exception as error:  # noqa: BLE001 - the model is built all the same
            installer.refuse(f"the resolved model class cannot be followed ({type(error).__name__}: {error})")
        return found

    setattr(registry, RESOLVE, resolved)
    setattr(registry, INSTALLED, True)


def _follow(model_class: Any, building: list[Any], installer: Installer) -> None:
    """Its constructor tells the installer when it is through; a model inside a model is part of the outer one."""
    if INSTALLED in model_class.__dict__:
        return
    initialise = model_class.__init__

    @functools.wraps(initialise)
    def followed(self: Any, *args: Any, **kwargs: Any) -> None:
        building.append(self)
        try:
            initialise(self, *args, **kwargs)
        finally:
            building.pop()
        if not building:
            installer.built(self)

    model_class.__init__ = followed
    setattr(model_class, INSTALLED, True)


def _version() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
