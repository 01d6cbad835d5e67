"""Is the list of gates complete? No compiler here: what plans can choose against what `launches` lists."""

from dataclasses import replace
from itertools import product

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.contract.gpus import ARCHITECTURES, CATALOG, PORTABLE
from nvfp4_suite.contract.kernel import ACTIVATIONS, DTYPES
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.tuning import BLOCK_M_STEPS, PORTABLE_BLOCK_M_STEPS

SMALL = {f"{experts} experts": LayerShape(experts, 1, 2048, 768) for experts in (1, 8, 60)}


def gated(capability: tuple[int, int]) -> list:
    return [launch for listed, launch in gates.launches() if listed == capability]


def test_every_gate_has_its_own_name():
    ids = [gates.launch_id(*gate) for gate in gates.launches()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("capability", gates.GATED, ids=gates.arch_name)
def test_every_tile_scale_dtype_and_option_is_gated(capability):
    launches, architecture = gated(capability), ARCHITECTURES[capability]
    gemms = [launch for launch in launches if launch.instruction]
    crossed = {
        tuple(g.constexpr(name) for name in ("BLOCK_M", "K_UNIT", "WEIGHTED"))
        + tuple(dict(g.arguments)[name] for name in ("x", "scale"))
        for g in gemms
    }
    own = "*fp8e4nv" if architecture.native_e4m3 else "*u8"
    tiles = {(m, unit, own) for _, m in BLOCK_M_STEPS for unit in (16, 32)}
    tiles |= {(m, 32, "*u8") for _, m in PORTABLE_BLOCK_M_STEPS}
    assert crossed == {
        (m, unit, weighted, f"*{dtype}", scale)
        for m, unit, scale in tiles
        for weighted, dtype in product((False, True), DTYPES)
    }
    assert {gemm.instruction for gemm in gemms} == {architecture.matrix_instruction}
    activations = {(dict(a.arguments)["out"], a.constexpr("ACTIVATION")) for a in launches if a.stage == "activation"}
    assert activations == {(f"*{dtype}", activation) for dtype in DTYPES for activation in ACTIVATIONS}


@pytest.mark.parametrize("gpu", [PORTABLE, *CATALOG], ids=lambda g: g.name)
def test_no_token_count_and_no_shape_reaches_a_binary_that_is_not_gated(gpu):
    """Every 12 % between 1 and 40,000 tokens, also for the checkpoints beyond the six: their sizes are no constants."""
    listed = {_binary(launch) for launch in gated(gpu.capability or (8, 0))}
    for tokens in sorted({int(1.12**step) for step in range(95)}):
        for name, shape in (CHECKPOINTS | SMALL).items():
            missing = {_binary(launch) for launch in plan_layer(gpu, shape, tokens).launches} - listed
            assert not missing, f"{name} with {tokens} tokens on {gpu.name} runs what is not gated: {missing}"


def _binary(launch):
    return replace(launch, stage="")
