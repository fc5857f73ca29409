"""Names to import in place of FlashInfer, whose kernels are too large to carry. Using one raises.

SGLang's quantisation and vision modules import names of it without being asked to use them. ``norm`` is refused, so
that sgl_kernel takes its own kernels, and ``fused_topk_deepseek``, so that SGLang takes its own.
Launch with ``SGLANG_IS_FLASHINFER_AVAILABLE=false``.
"""

import importlib.abc
import importlib.machinery
import sys
import types

REFUSED = {"flashinfer.norm", "flashinfer.fused_moe.fused_topk_deepseek"}


class _Missing:
    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _Missing(f"{self._name}.{attribute}")

    def __call__(self, *_args, **_kwargs):
        raise RuntimeError(f"{self._name} is a stand-in: FlashInfer is not installed")


class _Module(types.ModuleType):
    def __getattr__(self, attribute):
        name = f"{self.__name__}.{attribute}"
        if attribute.startswith("__") or name in REFUSED:
            raise AttributeError(name)
        return _Missing(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if not name.startswith("flashinfer.") or name in REFUSED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())
sys.modules[__name__].__class__ = _Module
