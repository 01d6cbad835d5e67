"""Faults that happened to others, by the tracker that has the report, and the property that each of them broke.

A test that states such a property is marked with the reference; `pytest -m fault` runs them all. A property is stated
with the report's own numbers or sizes, and for every kernel that could have the fault.
"""

FAULTS: dict[str, str] = {
    "triton-lang/triton#11753": "A scale is rounded to e4m3 once, so that what lies just above a midpoint goes up.",
    "ROCm/aiter#2900": "With a ragged K, writers and readers agree where a row ends, and nothing behind it counts.",
    "sgl-project/sglang#4727": "Row times distance of rows is a 64-bit number, in every load and every store.",
    "sgl-project/sglang#38773": "No tokens launch nothing, and the next call gives the bytes of a fresh process.",
    "vllm-project/vllm-xpu-kernels#571": "An id outside the experts adds exact zeros; nothing is read for it.",
    "flashinfer-ai/flashinfer#3011": "A token that names one expert twice gets both of its weights.",
    "vllm-project/vllm#37135": "fp16 overflows only where the true result of a stage does, and only in its own row.",
    "triton-lang/triton#10821": "Two dots into one accumulator give the sum of both, or are never planned.",
    "NVIDIA/TransformerEngine#3062": "No plan needs more shared memory than its own card has, whatever compiles.",
    "local-inference-lab/b12x#388": "A subnormal block scale is no normal one, and a negative one keeps its sign.",
    "tile-ai/tilelang#2704": "The codes of 0 and of 0.5 have no exponent to rebase; code 8 is -0.",
    "ROCm/aiter#3992": "A value midway between two codes takes the even one.",
    "FlashML-org/FreeToken#48": "What a card can do is asked for each card, each time, whatever was asked before.",
    "ROCm/vllm#1069": "Work follows blocks, not routes: a plan that pads more than another would is listed.",
    "vllm-project/vllm#52383": "A replay of a graph reads the data of its time, and nothing that another left.",
    "flashinfer-ai/flashinfer#5221": "A call has one output, whatever runs beside it and however routes are ordered.",
    "triton-lang/triton#11831": "A test's worker sees one of the GPUs that were given to the job, and no other.",
    "modular/modular#6600": "A stored divisor is no multiplier, and linear block scales are not tiled twice.",
    "vllm-project/vllm#54974": "Gate and up each keep their own global scale.",
    "vllm-project/vllm#31097": "Every padding byte of tiled block scales is written, and none of them counts.",
    "triton-lang/triton#7549": "A native FP4 dot is planned only where it compiles to the FP4 instruction.",
    "triton-lang/triton#10462": "An assembler older than the card is told from a fault of a kernel, and is named.",
    "FlashML-org/FreeToken#430": "Every dialect gives the same banks, whole, or an error that names the tensor.",
    "NVIDIA/Model-Optimizer#1397": "Non-finite scales are refused, and zero blocks quantize to finite ones.",
    "vllm-project/vllm#45738": "An activation is the one that was named, with its alpha and its limit.",
}
