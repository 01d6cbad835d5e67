"""NVFP4 weights into the registers that wgmma reads its first operand from, on sm_90. Gluon device functions.

wgmma takes 16 of K at a time, and of those a thread has four, in two pairs. So that a thread finds its codes of four
instructions in 8 bytes that follow each other, below one block scale, K is in an order of its own inside each 64:
`hopper.k_of_position` says which k the activations must have at a position. Weights stand as the checkpoint has them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .. import hopper

ROWS = gl.constexpr(hopper.ROWS)
STEP = gl.constexpr(hopper.K_UNIT)  # of K

# Codes are left at value * 2^-126 in bf16 and at value * 2^-14 in fp16, as their bits read there, and their block
# scales multiplied by what leaves weight * 2^-7: exact in both, as decode.py says of its pair.
SCALE_BF16 = gl.constexpr(2.0**119)
SCALE_FP16 = gl.constexpr(2.0**7)
LACKING = gl.constexpr(2.0**7)


@gluon.constexpr_function
def decoded_layout(num_warps):
    """[row, t, h, s, j] of a step's weights: thread t of four has 16 k of each of its rows, two words h of them.

    Codes s and s + 4 of a word are the pair that instruction s takes of it.
    """
    warps = [[16 << bit, 0, 0, 0, 0] for bit in range(num_warps.bit_length() - 1)]
    rows = [[8, 0, 0, 0, 0]] + ([[64, 0, 0, 0, 0]] if num_warps == 4 else [])
    registers = [[0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 0, 2, 0], [0, 0, 1, 0, 0], *rows]
    lanes = [[0, 1, 0, 0, 0], [0, 2, 0, 0, 0], [1, 0, 0, 0, 0], [2, 0, 0, 0, 0], [4, 0, 0, 0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [128, 4, 2, 4, 2])


@gluon.constexpr_function
def decode_source(bf16, prepared):
    """PTX: the eight codes of word $4, times the pair of scales $12, as four pairs in $0 to $3."""
    lines = [".reg .b32 m, g;"]
    if bf16 and not prepared:
        lines.append(".reg .b32 h; shr.b32 h, $4, 8;")
    for s in range(4):
        lines += by_product(s) if bf16 and not prepared else by_shifts(s, bf16, prepared)
        lines.append(f"mul.{'bf16x2' if bf16 else 'f16x2'} ${s}, m, $12;")
    return "{ " + " ".join(lines) + " }"


@gluon.constexpr_function
def by_product(s):
    """PTX: codes s and s + 4 at their places in bf16: a product moves sign and magnitude, and neither gets a carry."""
    place = s % 2 * 4
    return [
        f"and.b32 m, {'h' if s > 1 else '$4'}, {0xF000F << place:#x};",
        f"mul.lo.u32 m, m, {(1 << 12 | 1 << 6) >> place:#x};",
        "and.b32 m, m, 0x81C081C0;",
    ]


@gluon.constexpr_function
def by_shifts(s, bf16, prepared):
    """PTX: codes s and s + 4 at their places, a shift for each of the distances that their bits have to go."""
    masks, lines = {}, []
    bits = (hopper.PREPARED_BITS if prepared else hopper.CODE_BITS)[s]
    for bit, place in zip(bits, (6, 7, 8, 15) if bf16 else (9, 10, 11, 15), strict=True):
        masks[place - bit] = masks.get(place - bit, 0) | 0x10001 << place
    for number, (shift, mask) in enumerate(masks.items()):
        into = "g" if number else "m"
        lines.append(f"{'shl' if shift > 0 else 'shr'}.b32 {into}, $4, {abs(shift)};")
        lines.append(f"and.b32 {into}, {into}, {mask:#x};" + " or.b32 m, m, g;" * (number > 0))
    return lines


@gluon.jit
def decode(words, scale, dtype: gl.constexpr, PREPARED: gl.constexpr, layout: gl.constexpr, operand: gl.constexpr):
    """The step's weights * 2^-7 as wgmma's first operand [ROWS, STEP], from shared `words` and `scale`."""
    pairs: gl.constexpr = gl.SliceLayout(4, layout)
    codes = words.load(gl.SliceLayout(3, pairs))
    factor = factors(scale.load(gl.SliceLayout(2, gl.SliceLayout(3, pairs))), dtype)
    shape: gl.constexpr = [ROWS, 4, 2, 4, 2]
    codes, _ = gl.broadcast(codes[:, :, :, None, None], gl.full(shape, 0, gl.int32, layout))
    factor, _ = gl.broadcast(factor[:, :, None, None, None], gl.full(shape, 0, dtype, layout))
    weights = decoded(codes, factor, PREPARED).permute([0, 3, 2, 1, 4]).reshape([ROWS, STEP])
    return gl.convert_layout(weights, operand, assert_trivial=True)


@gluon.jit
def factors(scale, dtype: gl.constexpr):
    """What `decoded` multiplies codes by, of `dtype`, for block scales in e4m3."""
    factor = scale.to(gl.float16)
    return (factor.to(gl.float32) * SCALE_BF16).to(gl.bfloat16) if dtype == gl.bfloat16 else factor * SCALE_FP16


@gluon.jit
def decoded(codes, factor, PREPARED: gl.constexpr):
    """Weights * 2^-7 [..., s, j] of words `codes` and `factor`, both broadcast, whose layout gives a thread a word."""
    source: gl.constexpr = decode_source(factor.dtype == gl.bfloat16, PREPARED)
    registers: gl.constexpr = "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r,r,r"
    if factor.dtype == gl.bfloat16:
        weights = gl.inline_asm_elementwise(source, registers, [codes, factor], gl.bfloat16, True, 8)
    else:
        weights = gl.inline_asm_elementwise(source, registers, [codes, factor], gl.float16, True, 8)
    return weights


@gluon.jit
def rounded_pair(first, second, dtype: gl.constexpr):
    """Both fp32, rounded to `dtype`, as fp32. Apart, they would take an instruction of a quarter the rate."""
    if dtype == gl.bfloat16:
        source: gl.constexpr = (
            "{ .reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; .reg .b32 u;"
            " shl.b32 u, t, 16; mov.b32 $0, u; and.b32 u, t, 0xFFFF0000; mov.b32 $1, u; }"
        )
    else:
        source: gl.constexpr = (
            "{ .reg .b32 t; .reg .b16 l, h; cvt.rn.f16x2.f32 t, $3, $2; mov.b32 {l, h}, t;"
            " cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }"
        )
    return gl.inline_asm_elementwise(source, "=f,=f,f,f", [first, second], (gl.float32, gl.float32), True, 1)
