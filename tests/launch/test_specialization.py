"""What runs is what was gated: a launch compiles with the types and the divisibility that its plan declares."""

import pytest
import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts, hopper, hopper_gemv, w4a4
from nvfp4_suite.kernels.launch import Launch, compile_only, device_function
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.registry import KERNELS

from ..engine import COMPARED
from ..moe.subject import layer_arguments, plan_options
from ..starts import at_starts

# Sizes that tempt Triton to specialize: 1, multiples of 16, and neither.
SHAPES = [LayerShape(1, 1, 16, 16), LayerShape(16, 2, 272, 80), LayerShape(32, 16, 256, 512)]
SHAPES += [LayerShape(1, 1, 1024, 1024)]


@pytest.mark.parametrize("kernel", ["prefill", "decode", *w4a4.FORMS])
@pytest.mark.parametrize("weight_on_input", [False, True])
@pytest.mark.parametrize("tokens", [1, 16, 33])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"e{s.experts}k{s.top_k}h{s.hidden}i{s.intermediate}")
def test_every_launch_compiles_as_declared(shape, tokens, weight_on_input, kernel, device, monkeypatch):
    case = Case(shape, tokens, inputs="random", weight_on_input=weight_on_input, format="w4a4")
    plan = plan_layer(gpus.current(0), shape, tokens, kernel=kernel, **plan_options(case))
    check_compiled_as_declared(plan, experts, monkeypatch, *layer_arguments(random_inputs(case).to(device)))


# The kernels for sm_90 have the last two of SHAPES for their own, decode's the last; else others stand in for them.
OTHERS = sorted({*COMPARED, *hopper.NAMES, hopper_gemv.NAME})


@pytest.mark.parametrize("kernel", OTHERS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"e{s.experts}k{s.top_k}h{s.hidden}i{s.intermediate}")
def test_every_compared_kernel_compiles_as_declared(shape, kernel, device, monkeypatch):
    case = Case(shape, 33, inputs="random")
    options = {"kernel": kernel, "triton": experts.release(), **plan_options(case)}
    plan = plan_layer(gpus.current(0), shape, case.tokens, **options)
    x, banks, *routing = layer_arguments(random_inputs(case).to(device))
    check_compiled_as_declared(plan, experts, monkeypatch, x, KERNELS[kernel].prepare(banks), *routing)


def check_compiled_as_declared(plan, module, monkeypatch, *arguments) -> None:
    """Runs `plan` by `module`.run, and compares every binary with the launch that it came of."""
    compiled = []
    at_starts(monkeypatch, lambda start, launch, *a, **k: compiled.append((launch, start(launch, *a, **k))))
    module.run(plan, *arguments)
    torch.cuda.synchronize()
    assert [launch for launch, _ in compiled] == list(plan.launches)
    for launch, binary in compiled:
        assert _declared(launch) == _actual(launch, binary), launch.label
        assert compile_only(launch) is binary, f"{launch.label} is another binary when it is compiled alone"
        found = (binary.metadata.num_warps, binary.metadata.num_stages, binary.metadata.enable_fp_fusion)
        assert found == (launch.num_warps, launch.num_stages, launch.fp_fusion), launch.label


def _declared(launch: Launch) -> dict[str, tuple[str, bool]]:
    return {name: (kind, name in launch.divisible) for name, kind in launch.arguments}


def _actual(launch: Launch, binary) -> dict[str, tuple[str, bool]]:
    """Each run-time argument's type and whether it is known to be divisible by 16, from the compiled source."""
    names = device_function(launch).arg_names
    divisible = {
        names[path[0]] for path, attributes in binary.src.attrs.items() if ["tt.divisibility", 16] in attributes
    }
    kinds = {name: kind for name, kind in binary.src.signature.items() if kind != "constexpr"}
    return {name: (kind, name in divisible) for name, kind in kinds.items()}
