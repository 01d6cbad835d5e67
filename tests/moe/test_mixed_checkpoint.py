"""A model with layers in NVFP4 and in bf16, from a bank file, through the kernels that its layers were bound to: every
layer gives the bytes that it gives alone, from its exporter's file."""

import pytest
import torch
from safetensors.torch import load_file

from nvfp4_suite.contract.bank_file import load_banks, save_banks
from nvfp4_suite.contract.binding import Bound, bind
from nvfp4_suite.contract.case import Inputs
from nvfp4_suite.contract.checkpoint import load_experts, load_layer
from nvfp4_suite.contract.dense_banks import DenseBanks
from nvfp4_suite.contract.kernel import Promise
from nvfp4_suite.contract.layer_formats import describe
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.reference import judge, moe

from ..contract.checkpoints import DATA, FOLDERS
from ..contract.mixed import write_mixed
from ..engine import INTERPRETED
from .subject import run_kernel

TOKENS = slice(2 if INTERPRETED else None)
# layer of the mixed model: where it comes from
SOURCES = {0: ("modelopt", 0), 2: ("compressed_tensors", 0), 3: ("modelopt", 1)}


class DenseReference:
    """The float64 reference as a kernel of layers that are not quantized."""

    name = "dense reference"
    promise = Promise(formats=("bf16", "fp16"))

    def prepare(self, banks: DenseBanks) -> tuple:
        return banks.gate_up.double(), banks.down.double()

    def run(self, prepared, hidden_states, topk_weights, topk_ids, **options):
        out = moe.dense_layer(hidden_states, *prepared, topk_weights, topk_ids, **options)
        return out.to(hidden_states.dtype)


ALL = {**KERNELS, DenseReference.name: DenseReference()}


@pytest.fixture(scope="module")
def bound(tmp_path_factory) -> dict[int, Bound]:
    folder = write_mixed(tmp_path_factory.mktemp("mixed"))
    return bind({layer: load_layer(folder, layer) for layer in describe(folder)}, ALL)


def output(layer: Bound, device: str) -> torch.Tensor:
    given = load_file(DATA / "layer_io.safetensors")
    x, weights, ids = (given[name][TOKENS] for name in ("hidden_states", "topk_weights", "topk_ids"))
    return run_kernel(ALL[layer.kernel], Inputs(x, layer.banks, weights, ids), device)


def test_every_layer_is_bound_to_a_kernel_that_takes_it(bound):
    for layer, (kernel, banks) in bound.items():
        assert set(ALL[kernel].promise.formats) & set(banks.formats), f"layer {layer}: {kernel}"
    assert bound[1].kernel == DenseReference.name


@pytest.mark.parametrize("layer", SOURCES)
def test_layer_gives_the_bytes_that_it_gives_alone(layer: int, bound, device, tmp_path):
    tool, number = SOURCES[layer]
    alone = load_experts(FOLDERS[tool], number)
    save_banks(tmp_path / "banks", bound)
    actual = output(load_banks(tmp_path / "banks", layer), device)
    judge.bitwise(actual, output(Bound(bound[layer].kernel, alone), device))


def test_dense_layer_gives_what_its_tool_gives(bound, device):
    expected = load_file(DATA / "layer_io.safetensors")["compressed_tensors.layer1"][TOKENS].bfloat16()
    judge.bitwise(output(bound[1], device), expected)
