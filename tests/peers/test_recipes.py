"""Our recipes against the producers' own packages, byte for byte."""

from itertools import product

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.reference import formats
from nvfp4_suite.reference.quantize import global_scale_of, quantize

from .data import AMAXES, DATA
from .producers import PRODUCERS, Bytes

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

_STATIC = "it computes (amax / 6) * 448 / (A / 6), and takes the 1 that replaces amax / 6 = 0 through the same"
_BF16 = "it rounds amax / 6 to the dtype of the weights, before the global scale comes in"

# (producer, dtype, data): why its bytes are others, at some amax of the tensor. Agreement would fail the test.
EXPECTED_TO_DIFFER = {
    **dict.fromkeys(product(["modelopt, static"], ["fp32"], ["scale_ties", "zeros", "zero_tensor"]), _STATIC),
    **dict.fromkeys(product(["modelopt, static"], ["bf16"], ["scale_ties", "subnormal", "binades", "zeros"]), _STATIC),
    **dict.fromkeys(
        product(
            ["compressed-tensors"],
            ["bf16"],
            ["ordinary", "scale_ties", "subnormal", "saturation", "binades", "non_finite"],
        ),
        _BF16,
    ),
}


def comparable(packed: torch.Tensor, scale: torch.Tensor) -> Bytes:
    """Codes and scales without the sign of NaN, which is the machine's: in the scale, and in all codes of its block."""
    codes = formats.unpack(packed).unflatten(-1, (-1, 16))
    nan = scale & 0x7F == 0x7F
    return torch.where(nan[..., None], codes & 7, codes), torch.where(nan, 0x7F, scale)


def differences(producer: str, x: torch.Tensor, amax: float) -> str:
    """How many bytes of `x` as we and they quantize it differ, in words; nothing where none does."""
    theirs = PRODUCERS[producer]
    global_scale = theirs.global_scale(torch.tensor(amax))
    ours = comparable(*quantize(x, global_scale, theirs.recipe))
    codes, scales = map(torch.ne, ours, comparable(*theirs.quantize(x, global_scale)))
    return f"{scales.sum()} scales, {codes.sum()} codes" if scales.any() or codes.any() else ""


def judge(case: tuple[str, str, str], found: dict[float, str]) -> None:
    """Passes if bytes differ at some amax just where the table says so."""
    __tracebackhide__ = True
    found = {amax: what for amax, what in found.items() if what}
    if case in EXPECTED_TO_DIFFER:
        assert found, f"the bytes agree, but should differ: {EXPECTED_TO_DIFFER[case]}"
    else:
        assert found == {}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_bytes(producer, dtype, data):
    found = {amax: differences(producer, DATA[data](amax).to(DTYPES[dtype]), amax) for amax in AMAXES}
    judge((producer, dtype, data), found)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_bytes_of_a_tensor_of_zeros(producer):
    found = {0.0: differences(producer, torch.tensor([0.0, -0.0]).repeat(4, 16), amax=0.0)}
    judge((producer, "fp32", "zero_tensor"), found)


def test_every_expected_difference_is_looked_for():
    assert EXPECTED_TO_DIFFER.keys() <= set(product(PRODUCERS, DTYPES, [*DATA, "zero_tensor"]))


@pytest.mark.parametrize("producer", PRODUCERS)
def test_global_scales(producer):
    special = [*AMAXES, 0.0, torch.inf, torch.nan, 3e38, 1e-30, 1e-38, 2.0**-149]
    even = (hashed("amaxes", 300) >> 8) * 2.0 ** (hashed("exponents", 300) % 200 - 120)
    for amax in torch.cat([torch.tensor(special), even.float()]):
        found, wanted = global_scale_of(amax, PRODUCERS[producer].recipe), PRODUCERS[producer].global_scale(amax)
        assert torch.equal(found.nan_to_num(nan=-1.0), wanted.reshape(()).nan_to_num(nan=-1.0)), amax.item()
