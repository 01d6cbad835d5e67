"""The kernels that plans know, and what each of them launches where. Pure: neither torch nor triton is needed."""

import re
from functools import cache

from ...contract.gpus import ARCHITECTURES
from ...contract.kernel import ACTIVATIONS, DTYPES
from ...contract.shapes import CHECKPOINTS
from ...kernels import decode, hopper, hopper_gemv, w4a4
from ...kernels.plan import plan_layer
from ...kernels.releases import NO_ASSEMBLER, TRITONS
from ...kernels.variants import VARIANTS
from ..gates import arch_name, launch_id
from ..plans import CARDS

Form = tuple[str, frozenset[str]]  # a function of kernels/device, and how it is written: the flags it is compiled with

CPU = "CPU"  # stands where an architecture does, for the interpreter
KERNELS = (*VARIANTS, decode.NAME, *w4a4.FORMS)
CAPABILITIES = {arch_name(capability): capability for capability in ARCHITECTURES}

# Plans of these have every form that a kernel takes on a card: below and above the size from which down has a tile per
# program, for one token, for some and for many.
SHAPES, TOKENS = (CHECKPOINTS["GLM-5.2"], CHECKPOINTS["Qwen3.6-35B-A3B"]), (1, 512, 16384)

_SIZE = re.compile(r"[a-z]+\d+|\d+[ws]")
_OPTIONS = {*DTYPES, *ACTIVATIONS, "weighted"}


def is_meant(kernel: str, arch: str, triton: str) -> bool:
    """Whether `kernel` can be what its name says there. One that nobody here knows is meant everywhere."""
    capability, form = CAPABILITIES.get(arch), w4a4.FORMS.get(kernel)
    if kernel in (*hopper.NAMES, hopper_gemv.NAME):
        return capability == hopper.CAPABILITY and (triton in hopper.TRITONS or triton not in TRITONS)
    if arch == CPU:  # it has no atomics on bf16, and not in every release a native dot
        return form is None or not (form.atomic or form.native)
    if triton in NO_ASSEMBLER.get(capability, ()):
        return False
    if form is None or not form.native or triton not in TRITONS:
        return True
    releases = w4a4.SPECIALIZED_TRITONS if form.specialized else w4a4.NATIVE_TRITONS
    return triton in releases.get(capability, ())


@cache
def forms(kernel: str, arch: str, triton: str) -> frozenset[Form]:
    """What plans of `kernel` launch on cards of `arch`; empty where it is not meant, and where nobody can say."""
    cards = [gpu for gpu in CARDS if CAPABILITIES.get(arch) == gpu.capability is not None]
    if kernel not in KERNELS or triton not in TRITONS or not cards or not is_meant(kernel, arch, triton):
        return frozenset()
    options = {"triton": triton, "input_scales": True, "kernel": kernel}
    plans = [plan_layer(cards[0], shape, tokens, **options) for shape in SHAPES for tokens in TOKENS]
    launches = {launch for one in plans for launch in one.launches}
    return frozenset(form_of(launch.kernel, launch_id(CAPABILITIES[arch], launch)) for launch in launches)


def form_of(function: str, name: str) -> Form:
    """The form of a gate by its id: what is left of it without sizes and without what a caller chooses."""
    words = name.partition(function.rpartition(".")[2])[2].split("-")
    return function, frozenset(word for word in words if word and not _SIZE.fullmatch(word) and word not in _OPTIONS)
