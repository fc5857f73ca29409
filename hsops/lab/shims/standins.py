"""Modules in place of CUDA packages: they can be imported, subclassed and used as decorators, but compute nothing.

The CPU path of SGLang needs none of their kernels, only that the imports at the top of its files work.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

ANY = (99,)

# package: (version it claims, first and last SGLang that gets it, its attributes may be called)
# sgl_kernel's attributes are kernels: a call is a mistake and raises. The others' are decorators and types.
PACKAGES = {
    "sgl_kernel": ("0.3.21", (0,), ANY, False),
    "triton": ("3.5.1", (0,), ANY, True),
    "torchvision": ("0.28.0", (0,), ANY, True),  # the real one does not match the CPU build of torch
    "torchao": ("0.9.0", (0,), ANY, True),
    "vllm": ("0.0.0", (0,), (0, 5, 7), True),
    "cutlass": ("0.0.0", (0, 5, 15), (0, 5, 15), True),
    "cuda": ("0.0.0", (0, 5, 15), (0, 5, 15), True),
}


def wanted(sglang: tuple[int, ...]) -> dict[str, bool]:
    """The packages that this SGLang needs: name -> attributes may be called."""
    return {name: lenient for name, (_, first, last, lenient) in PACKAGES.items() if first <= sglang <= last}


class Finder:
    """Finds every submodule of the wanted packages, whatever its name."""

    def __init__(self, packages: Mapping[str, bool]) -> None:
        self.packages = packages

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        loader: Any = self
        return ModuleSpec(name, loader, is_package=True) if name.partition(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Standin(spec.name, _Lenient if self.packages[spec.name.partition(".")[0]] else _Strict)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in PACKAGES:
            module.__dict__["__version__"] = PACKAGES[module.__name__][0]
        if finish := _FINISH.get(module.__name__):
            finish(module)


class Standin(ModuleType):
    """A module that has every attribute."""

    def __init__(self, name: str, kind: type[_Strict]) -> None:
        super().__init__(name)
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(self._kind, self.__name__, name)


class _Strict(type):
    """The type of a placeholder: a class with every attribute, which cannot be called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(type(cls), cls.__module__, f"{cls.__qualname__}.{name}")

    def __getitem__(cls, item: object) -> Any:
        return cls

    def __call__(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"{cls.__module__}.{cls.__qualname__} does not exist in the lab, which has no GPU")


class _Lenient(_Strict):
    """A placeholder that also works as a decorator, with or without arguments."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], FunctionType | Kernel):
            return args[0] if isinstance(args[0], Kernel) else Kernel(args[0])
        return cls


def _placeholder(kind: type[_Strict], module: str, name: str) -> Any:
    return kind(name, (), {"__module__": module, "__qualname__": name})


class Kernel:
    """A decorated function: it can be defined, looked at and indexed by a grid, not launched."""

    def __init__(self, function: FunctionType) -> None:
        import functools

        self.fn = function
        functools.update_wrapper(self, function)

    def __getitem__(self, grid: object) -> Kernel:
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"kernel {self.fn.__qualname__} was launched in the lab, which has no GPU")


def _finish_triton(triton: ModuleType) -> None:
    from importlib import import_module

    runtime = import_module("triton.runtime")
    import_module("triton.language")
    runtime.__dict__.update(driver=_NoDriver(), JITFunction=Kernel)
    import_module("triton.runtime.jit").__dict__["JITFunction"] = Kernel
    triton.__dict__.update(cdiv=lambda a, b: -(-a // b), next_power_of_2=lambda n: 1 << max(n - 1, 0).bit_length())


class _NoDriver:
    """torch and SGLang ask for the active driver to learn whether there is a GPU, and expect this answer."""

    @property
    def active(self) -> Any:
        raise RuntimeError("0 active drivers: the lab has no GPU")


def _finish_torchvision(torchvision: ModuleType) -> None:
    import enum
    from importlib import import_module

    names = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
    modes = enum.Enum("InterpolationMode", {name.upper().replace("-", "_"): name for name in names})  # type: ignore[misc]
    for name in ("io", "ops", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional"):
        module = import_module(f"{torchvision.__name__}.{name}")
        if name.startswith("transforms"):  # transformers iterates over the members
            module.__dict__["InterpolationMode"] = modes


def _hand_back(own: str) -> Callable[[ModuleType], None]:
    """SGLang up to 0.5.7 replaces its layers by vLLM's on a CPU without AMX: give it its own again."""

    def finish(module: ModuleType) -> None:
        module.__dict__["__getattr__"] = lambda name: getattr(sys.modules[own], name)

    return finish


_FINISH = {
    "triton": _finish_triton,
    "torchvision": _finish_torchvision,
    "vllm.model_executor.layers.layernorm": _hand_back("sglang.srt.layers.layernorm"),
    "vllm.model_executor.layers.activation": _hand_back("sglang.srt.layers.activation"),
}
