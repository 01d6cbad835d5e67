"""Tile: the sizes of one prefill GEMM; what they may be, the instruction and the shared memory they lead to. Pure."""

from dataclasses import dataclass

from ..contract.checks import whole
from ..contract.gpus import Architecture, Gpu, architecture, is_known
from .variants import DEFAULT, VARIANTS, Variant

WARPGROUP_ROWS, WARPGROUP_WARPS = 64, 4  # the fewest rows of the first operand, and warps, that wgmma and tcgen05 take
MOST_WARPS = 32  # 1,024 threads a block


@dataclass(frozen=True)
class Tile:
    """BLOCK_M routes x BLOCK_N weight rows, BLOCK_KB bytes of packed weights (twice as many k) a step.

    Raises TypeError for a size that is no int.
    """

    block_m: int
    block_n: int = 64
    block_kb: int = 32
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            whole(name, value)


def most_block_m(gpu: Gpu, variant: Variant) -> int | None:
    """The largest BLOCK_M with which `variant` computes what it should on `gpu`; None: any.

    Two dots into one accumulator come out wrong from tcgen05, without a word (triton-lang/triton#10821: B300, Triton
    3.6.0 and 3.7.1). It is not used below 64 rows. An architecture that is not known may have it, too.
    """
    tcgen05 = not is_known(gpu) or architecture(gpu).matrix_instruction == "tcgen05"
    return WARPGROUP_ROWS // 2 if variant.two_dots and tcgen05 else None


def least_tile(variant: Variant) -> Tile:
    """The least that each size of a tile may be.

    A dot over 16 of K has given wrong sums: Triton 3.6.0 and 3.8.0 compile it to mma.sync without a word, but an
    operand decoded from bytes takes 8 values of K a thread, so 32 of K for the four that share a row. Two dots have
    half of a step's K each.
    """
    return Tile(16, block_n=16, block_kb=32 if variant.two_dots else 16, num_warps=1, num_stages=1)


def matrix_instruction(tile: Tile, architecture: Architecture, variant: Variant = VARIANTS[DEFAULT]) -> str:
    """What Triton makes of the tile's dots.

    It falls back to mma.sync, without a word, where they have too few rows or less than a warp group's warps.
    """
    rows = tile.block_m if variant.two_dots else tile.block_n
    small = rows < WARPGROUP_ROWS or tile.num_warps < WARPGROUP_WARPS
    return "mma.sync" if small else architecture.matrix_instruction


def shared_memory(tile: Tile, architecture: Architecture, variant: Variant = VARIANTS[DEFAULT]) -> int:
    """Bytes of shared memory that Triton 3.8.0 gives a prefill GEMM of `variant`.

    At most 256 bytes too many for every planned tile, where the gates hold it against the compiler; an estimate for
    other tiles. The result passes through when all that the loop needs is free again.
    """
    instruction = matrix_instruction(tile, architecture, variant)
    loop = {"byte": _byte_loop, "pair": _pair_loop, "table": _table_loop}[variant.form](tile, instruction, variant)
    return max(loop, tile.block_m * tile.block_n * 2)


def _byte_loop(tile: Tile, instruction: str, variant: Variant) -> int:
    """Packed weights are buffered one stage less than the pipeline has, activations too where the dot reads them into
    registers (mma.sync); wgmma and tcgen05 read them in place, one stage longer. Scales pass through once, except with
    tcgen05, which waits on two 8-byte barriers instead.

    Words of scales are buffered like packed weights. The decoded weights then take the way through shared memory to
    the registers, and with wgmma a part of them once more; tcgen05 has them in its own memory.
    """
    packed, activations, ahead = _packed(tile), _activations(tile), tile.num_stages - 1
    kept = max(ahead, 1) if instruction == "mma.sync" else tile.num_stages
    loop = ahead * packed + kept * activations
    if instruction == "tcgen05":
        loop += 16
    elif not variant.scale_words:
        loop += packed // 8
    if variant.scale_words:
        decoded = {"mma.sync": 4, "wgmma": 5 if tile.num_warps <= 4 else 6, "tcgen05": 0}[instruction]
        loop += ahead * packed // 8 + decoded * packed
    return loop


def _pair_loop(tile: Tile, instruction: str, variant: Variant) -> int:
    """Packed weights and activations are buffered; one half of the activations and one decoded operand pass through,
    both decoded operands with wgmma, which reads them in place.
    """
    packed, activations, ahead = _packed(tile), _activations(tile), tile.num_stages - 1
    return ahead * (packed + activations) + activations // 2 + (4 if instruction == "wgmma" else 2) * packed


def _table_loop(tile: Tile, instruction: str, variant: Variant) -> int:
    """The fp32 values of both codes are gathered into buffers, one step behind the packed weights that say which;
    both halves of the activations and one decoded operand pass through, with wgmma and 8 warps a part of them twice.
    """
    packed, activations = _packed(tile), _activations(tile)
    again = activations // 2 if instruction == "wgmma" and tile.num_warps > 4 else 0
    return (tile.num_stages + 2 * 4 + 2) * packed + activations + again


def _packed(tile: Tile) -> int:
    return tile.block_n * tile.block_kb


def _activations(tile: Tile) -> int:
    return 2 * tile.block_kb * tile.block_m * 2
