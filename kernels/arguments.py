"""What a layer is called with, checked before anything is launched; every error names the argument."""

import math
import numbers
import sys

import torch
from torch import Tensor

from ..contract.banks import ExpertBanks
from ..contract.case import torch_dtype
from . import hopper, hopper_gemv
from .hopper_banks import PreparedBanks
from .launch import Launch
from .plan import LayerPlan

FP32_MAX = (2 - 2.0**-23) * 2.0**127

_VIEWS = {"*u8": torch.uint8, "*i32": torch.int32, "*fp8e4nv": torch.float8_e4m3fn}


def plain(tensor: Tensor) -> Tensor:
    """`tensor` contiguous and 16-byte aligned: itself where it is, else a copy."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def check_ids(topk_ids: Tensor) -> None:
    """`topk_ids` are what the kernels read: int32, row by row."""
    check_kinds({"topk_ids": (topk_ids, (torch.int32,))}, getattr(topk_ids, "device", None), "topk_ids")
    if not topk_ids.is_contiguous():
        raise ValueError(f"topk_ids has strides {list(topk_ids.stride())}, but should be contiguous")


def check_sizes(launch: Launch, k: int | None = None, **sizes: int) -> None:
    """`k` is a multiple of the launch's K_UNIT, and so is each of `sizes` of 16 where it is declared divisible.

    The GEMV for sm_90 has no part of a block: N is a multiple of it.
    """
    whole = launch.constexpr("BLOCK_N") if launch.kernel == hopper_gemv.GEMV else 16
    units = {name: whole for name in sizes if name in launch.divisible}
    sizes |= {} if k is None else {"K": k}
    units |= {} if k is None else {"K": launch.constexpr("K_UNIT")}
    for name, unit in units.items():
        if sizes[name] % unit:
            raise ValueError(f"{name} is {sizes[name]}, but should be a multiple of {unit} in {launch.stage}")


def dtype_name(hidden_states: Tensor) -> str:
    return "bf16" if hidden_states.dtype == torch.bfloat16 else "fp16"


def as_declared(launch: Launch, name: str, tensor: Tensor) -> Tensor:
    """`tensor` as `launch` declares its argument `name`: block scales as e4m3 or bytes, packed weights as words."""
    kind = dict(launch.arguments)[name]
    return tensor.view(_VIEWS[kind]) if kind in _VIEWS else tensor


def check_kinds(expected: dict[str, tuple[object, tuple[torch.dtype, ...]]], device: torch.device, like: str) -> None:
    """Every argument is a tensor of one of its dtypes, on the `device` of what `like` names."""
    for name, (tensor, allowed) in expected.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in allowed:
            found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{name} is {found}, but should be {' or '.join(map(str, allowed))}")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, but should be on {device} like {like}")


def check_tensors(hidden_states: Tensor, banks: ExpertBanks, topk_weights: Tensor, topk_ids: Tensor) -> None:
    if not isinstance(banks, ExpertBanks):
        raise TypeError(f"banks is a {type(banks).__name__}, but should be ExpertBanks")
    expected = {
        "hidden_states": (hidden_states, (torch.bfloat16, torch.float16)),
        "topk_weights": (topk_weights, (torch.float32,)),
        "topk_ids": (topk_ids, (torch.int32,)),
    }
    check_kinds(expected, banks.device, "the banks")
    if hidden_states.dim() != 2 or hidden_states.shape[1] != banks.hidden:
        raise ValueError(f"hidden_states has shape {list(hidden_states.shape)}, but should be [tokens, {banks.hidden}]")
    tokens = hidden_states.shape[0]
    for name, tensor in (("topk_weights", topk_weights), ("topk_ids", topk_ids)):
        if tensor.dim() != 2 or tensor.shape[0] != tokens or not tensor.shape[1]:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, but should be [{tokens}, top_k]")
    if topk_weights.shape != topk_ids.shape:
        raise ValueError(
            f"topk_weights has shape {list(topk_weights.shape)}, but should be {list(topk_ids.shape)} like topk_ids"
        )


def check_plan(plan: LayerPlan, hidden_states: Tensor, banks: ExpertBanks, topk_ids: Tensor) -> None:
    if not isinstance(plan, LayerPlan):
        raise TypeError(f"plan is {plan!r}, but should be a LayerPlan")
    shape = banks.layer_shape(topk_ids.shape[1])
    if shape != plan.shape:
        raise ValueError(f"plan is for {plan.shape}, but the tensors are of {shape}")
    if hidden_states.dtype != torch_dtype(plan.dtype):
        raise ValueError(f"plan is for {plan.dtype}, but hidden_states is {hidden_states.dtype}")
    if hidden_states.shape[0] and not plan.launches:
        raise ValueError(f"plan is for zero tokens, but hidden_states has {hidden_states.shape[0]}")
    _check_kind(plan, banks)
    check_runs_here("hidden_states", hidden_states)


def _check_kind(plan: LayerPlan, banks: ExpertBanks) -> None:
    """`banks` are prepared where both GEMMs of `plan` want them so, and not where neither does."""
    launches = plan.launch("gate_up"), plan.launch("down")
    wanted, of_down = (PreparedBanks if hopper.wants_prepared(launch) else ExpertBanks for launch in launches)
    if wanted is not of_down:
        raise ValueError(f"plan reads {wanted.__name__} in gate_up, but {of_down.__name__} in down: should be the same")
    if plan.launches and type(banks) is not wanted:
        raise ValueError(f"banks are {type(banks).__name__}, but should be {wanted.__name__} for {plan.kernel}")


def check_runs_here(name: str, tensor: Tensor) -> None:
    """`tensor` is where a kernel can run."""
    if not (tensor.is_cuda or _interpreter_is_repaired()):
        raise ValueError(
            f"{name} is on {tensor.device}, but should be on a GPU; for the CPU set TRITON_INTERPRET=1 "
            "and import nvfp4_suite.ci.interpreter first"
        )


def _interpreter_is_repaired() -> bool:
    """Triton's interpreter computes bf16 wrongly, without a word, until ci/interpreter.py has repaired it."""
    return getattr(sys.modules.get("triton.runtime.interpreter"), "repaired_by_nvfp4_suite", False)


def positive(name: str, value: float) -> float:
    """`value` as a Python float, because Triton would compile another binary for an int."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is a {type(value).__name__}, but should be a number")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not 0 < value <= FP32_MAX:
        raise ValueError(f"{name} is {value}, but should be above 0 and finite in fp32")
    return value
