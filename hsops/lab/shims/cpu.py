"""Patches without which SGLang refuses or crashes on a plain CPU with an MLA model. Each says since and until when."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from .hooks import Patch


def patches(sglang: tuple[int, ...]) -> Iterator[tuple[str, Patch]]:
    """(module, what to do after its import) for this version of SGLang."""
    yield "sglang.srt.distributed.device_communicators.pynccl_wrapper", hide_nccl
    yield "sglang.srt.models.deepseek_common.attention_backend_handler", attend_absorbed
    if sglang <= (0, 5, 7):  # where the registry lived
        yield "sglang.srt.models.deepseek_v2", attend_absorbed
    if sglang <= (0, 5, 4):
        yield "sglang.srt.model_executor.model_runner", allow_mla


def hide_nccl(module: ModuleType) -> None:
    """Where torch is the CUDA build, NCCL's library is there, and SGLang would set it up for its CPU ranks too.

    It takes a library that does not load as the sign to go without.
    """

    def __init__(_library: Any, *_args: Any, **_kwargs: Any) -> None:  # noqa: N807
        raise OSError("the lab has no GPU, so no NCCL")

    module.NCCLLibrary.__init__ = __init__


def attend_absorbed(module: ModuleType) -> None:
    """torch_native attention reads the latent cache, so prefill too must take the absorbed path.

    The registry's fallback would choose the expanded path (MHA) for prefill, and crash.
    """
    registry: Any = vars(module).get("AttentionBackendRegistry")
    if registry is not None:
        absorbed = module.AttnForwardMethod.MLA
        registry.register("torch_native", lambda _attention, _batch: absorbed)


def allow_mla(module: ModuleType) -> None:
    """Until 0.5.4 MLA on a CPU was only allowed with the AMX backend: pretend it while the check runs."""
    check = module.ModelRunner.model_specific_adjustment

    def model_specific_adjustment(runner: Any) -> Any:
        asked, has_amx = runner.server_args.attention_backend, module._is_cpu_amx_available  # noqa: SLF001
        runner.server_args.attention_backend, module.__dict__["_is_cpu_amx_available"] = "intel_amx", True
        try:
            return check(runner)
        finally:
            runner.server_args.attention_backend, module.__dict__["_is_cpu_amx_available"] = asked, has_amx

    module.ModelRunner.model_specific_adjustment = model_specific_adjustment
