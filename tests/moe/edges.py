"""The layers of the edge tests: such that every kernel's plan for them has launches of its own.

Where a shape has not what a kernel's launches ask for, the default kernel's stand in for them, and a test that runs it
by name tests the default again.
"""

from dataclasses import replace

from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import hopper, hopper_gemv, w4a4
from nvfp4_suite.kernels.variants import WORD_K

# What hidden and intermediate are multiples of, so that a kernel has its own launches. Other kernels take any.
UNITS = {hopper.NAME: 256, hopper.PREPARED: 256, "prefill_w4a16_words": WORD_K, w4a4.SPECIALIZED: w4a4.SPECIALIZED_K}
UNITS |= {hopper_gemv.NAME: hopper_gemv.LEAST_K}

# Of each edge the shape, the least that shows it, and tokens. test_edge_shapes.py asks for every kernel's plan.
EDGES: dict[str, tuple[LayerShape, int]] = {
    "odd input": (LayerShape(3, 2, 48, 32), 5),
    "known sums": (LayerShape(1, 1, 16, 16), 2),
    "no tokens": (LayerShape(4, 2, 64, 32), 1),
    "rerouted": (LayerShape(8, 2, 48, 16), 8),
    "repeated": (LayerShape(4, 3, 48, 16), 6),
    "repeated, many steps": (LayerShape(8, 4, 2048, 512), 64),
    "captured": (LayerShape(8, 2, 128, 64), 40),
    "far apart": (LayerShape(1, 1, 2**13, 16), 2),
    "whole steps": (LayerShape(1, 1, 192, 16), 33),
    "one tile": (LayerShape(1, 1, 64, 32), 64),
    "long rows": (LayerShape(1, 1, 2**18, 16), 8_193 + 256),
    "many routes": (LayerShape(8, 8, 7168, 16), 37_450),
    "rows apart": (LayerShape(1, 1, 64, 16), 2_049 + 64),
    "a large bank": (LayerShape(3, 1, 32768, 32768), 3),
    "large activations": (LayerShape(1, 1, 16, 65_536), 16_512),
}


def shape_of(edge: str, kernel: str, **other: int) -> LayerShape:
    """The shape of an edge of EDGES for `kernel`; `other` experts or top_k."""
    shape, _ = EDGES[edge]
    unit = UNITS.get(kernel, 1)
    sizes = {name: -(-getattr(shape, name) // unit) * unit for name in ("hidden", "intermediate")}
    return replace(shape, **sizes, **other)
