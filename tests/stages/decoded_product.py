"""What stands in for the FP4 instruction of w4a4_gluon.py on a GPU without one. Gluon device functions."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2


@gluon.jit
def decoded(codes, scale):
    """fp16 [R, 2 B] of e2m1 pairs [R, B] and their e4m3 scales [R, B / 8], exactly."""
    rows: gl.constexpr = codes.shape[0]
    size: gl.constexpr = codes.shape[1]
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    spread: gl.constexpr = gl.BlockedLayout([1, 1, 16], [4, 8, 1], [gl.num_warps(), 1, 1], [2, 1, 0])
    values = gl.fp4_to_fp(gl.convert_layout(codes, flat), gl.float16, 1)
    factor = gl.convert_layout(scale.to(gl.float16), gl.SliceLayout(2, spread)).expand_dims(2)
    factor = factor + gl.zeros([rows, size // 8, 16], gl.float16, spread)
    return values * gl.convert_layout(factor.reshape([rows, 2 * size]), values.type.layout)


@gluon.jit
def multiply_decoded(a, a_scale, b, b_scale, acc):
    """acc + a @ b, as the FP4 instruction does: of operands decoded to fp16, by the 16-bit instruction."""
    mma: gl.constexpr = acc.type.layout
    left = gl.convert_layout(decoded(a, a_scale), gl.DotOperandLayout(0, mma, 2))
    right = decoded(gl.permute(b, (1, 0)), b_scale)
    return mma_v2(left, gl.convert_layout(gl.permute(right, (1, 0)), gl.DotOperandLayout(1, mma, 2)), acc)
