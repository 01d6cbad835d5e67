"""The report takes a kernel for compiled where the gates have every form that it launches: whether they list them."""

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.ci.report import subjects
from nvfp4_suite.ci.report.subjects import CAPABILITIES, KERNELS

# No sample is of a small block there, whose down is persistent; the matrix says "unknown", and so it is.
NOT_GATED = {("prefill_w4a4_atomic", "sm_110")}


@pytest.fixture(scope="module")
def gated() -> set[tuple[str, subjects.Form]]:
    """(architecture, form) of all launches that are gated."""
    named = [(capability, launch, gates.launch_id(capability, launch)) for capability, launch in gates.launches()]
    return {(gates.arch_name(capability), subjects.form_of(launch.kernel, name)) for capability, launch, name in named}


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_form_of_a_kernel_is_gated_where_it_is_meant(kernel, gated):
    meant = [arch for arch in CAPABILITIES if subjects.is_meant(kernel, arch, gates.DEFAULT_TRITON)]
    forms = {arch: subjects.forms(kernel, arch, gates.DEFAULT_TRITON) for arch in meant}
    assert meant and all(len(found) >= 3 for found in forms.values())
    missing = {(kernel, arch) for arch in meant if not {(arch, form) for form in forms[arch]} <= gated}
    assert missing == {pair for pair in NOT_GATED if pair[0] == kernel}
