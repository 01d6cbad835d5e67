"""Is what the interpreter runs of the compared kernels there, and does it show their GEMMs from every side?"""

from nvfp4_suite.cases.layers import ALL
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.gpus import PORTABLE
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.tuning import block_m_steps
from nvfp4_suite.kernels.variants import VARIANTS

from ..engine import COMPARED, COMPARED_CASES
from ..moe.edges import shape_of
from ..moe.subject import plan_options


def test_every_one_is_a_case_of_a_table():
    of_edges = {Case(shape_of("odd input", kernel), 5, inputs="random") for kernel in COMPARED}
    assert not set(COMPARED_CASES) - {*ALL, *of_edges}


def test_every_kernel_shows_all_its_blocks_and_constants_in_both_dtypes():
    for kernel in COMPARED:
        seen = set()
        for case in COMPARED_CASES:
            plan = plan_layer(PORTABLE, case.shape, case.tokens, kernel=kernel, **plan_options(case))
            for launch in (plan.launch("gate_up"), plan.launch("down")):
                seen |= {("dtype", plan.dtype), *launch.constexprs}
        wanted = {("WEIGHTED", False), ("WEIGHTED", True), ("dtype", "bf16"), ("dtype", "fp16")}
        wanted |= {("BLOCK_M", block_m) for _, block_m in block_m_steps(PORTABLE, VARIANTS[kernel])}
        wanted |= {"pair": {("EVEN_K", False), ("EVEN_K", True)}}.get(VARIANTS[kernel].form, set())
        wanted |= {("SCALE_WORDS", True)} if VARIANTS[kernel].scale_words else set()
        assert wanted <= seen, kernel
