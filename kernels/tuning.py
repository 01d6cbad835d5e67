"""Tile tables of the prefill GEMM. Pure: neither torch nor triton."""

from dataclasses import dataclass, replace

from ..contract.gpus import Architecture


@dataclass(frozen=True)
class Tile:
    """BLOCK_M routes x BLOCK_N weight rows, BLOCK_KB bytes of packed weights (twice as many k) a step."""

    block_m: int
    block_n: int = 64
    block_kb: int = 32
    num_warps: int = 4
    num_stages: int = 3


# (at least so many tokens per expert, BLOCK_M): an H100 sweep over 96 configurations (FlashML-org/FreeToken#723).
BLOCK_M_STEPS: tuple[tuple[int, int], ...] = ((64, 128), (24, 64), (12, 32), (0, 16))

# For a GPU whose architecture is unknown: with emulated e4m3, a block of 128 needs more registers than sm_120 has.
PORTABLE_BLOCK_M_STEPS = BLOCK_M_STEPS[1:]

# Bytes of K a step where K is an odd multiple of 16: rows then allow loads of 8 bytes only, and with 32 bytes a step
# their addresses alone make sm_86 and sm_89 spill.
RAGGED_BLOCK_KB = 16

WARPGROUP_ROWS = 64  # the fewest rows of the first operand that wgmma and tcgen05 take


def prefill_tile(tokens_per_expert: float, k: int, steps: tuple[tuple[int, int], ...] = BLOCK_M_STEPS) -> Tile:
    """The tile of a GEMM over `k` for a mean of `tokens_per_expert` routes per expert."""
    tile = Tile(next(block_m for least, block_m in steps if tokens_per_expert >= least))
    return replace(tile, block_kb=RAGGED_BLOCK_KB) if k % 32 else tile


def matrix_instruction(tile: Tile, architecture: Architecture) -> str:
    """What Triton makes of the tile's dot; it falls back to mma.sync, without a word, where a tile has too few rows."""
    return "mma.sync" if tile.block_n < WARPGROUP_ROWS else architecture.matrix_instruction


def shared_memory(tile: Tile, architecture: Architecture) -> int:
    """Bytes of shared memory that Triton 3.8.0 gives the prefill GEMM.

    At most 256 bytes too many for every planned tile, where the gates hold it against the compiler; an estimate for
    other tiles.

    Packed weights are buffered one stage less than the pipeline has, activations too where the dot reads them into
    registers (mma.sync); wgmma and tcgen05 read them in place, one stage longer. Scales pass through once, except with
    tcgen05, which waits on two 8-byte barriers instead. The result passes through when all this is free again.
    """
    instruction = matrix_instruction(tile, architecture)
    activations = 2 * tile.block_kb * tile.block_m * 2
    packed = tile.block_n * tile.block_kb
    ahead = tile.num_stages - 1
    kept = max(ahead, 1) if instruction == "mma.sync" else tile.num_stages
    rest = 16 if instruction == "tcgen05" else packed // 8
    result = tile.block_m * tile.block_n * 2
    return max(ahead * packed + kept * activations + rest, result)
