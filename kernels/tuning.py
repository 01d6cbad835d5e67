"""Tile tables of the prefill GEMM. Pure: neither torch nor triton."""

from dataclasses import dataclass

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


def prefill_tile(tokens_per_expert: float) -> Tile:
    """The tile for a mean of `tokens_per_expert` routes per expert."""
    return Tile(next(block_m for least, block_m in BLOCK_M_STEPS if tokens_per_expert >= least))


def shared_memory(tile: Tile, architecture: Architecture) -> int:
    """Bytes of shared memory that Triton 3.8.0 gives the prefill GEMM; held against the compiler by the gates.

    Packed weights are buffered one stage less than the pipeline has, activations too where the dot reads them into
    registers (mma.sync); wgmma and tcgen05 read them in place, one stage longer. The scales pass through once, and
    tcgen05 waits on two 8-byte barriers.
    """
    activations = 2 * tile.block_kb * tile.block_m * 2
    packed = tile.block_n * tile.block_kb
    ahead = tile.num_stages - 1
    kept = ahead if architecture.matrix_instruction == "mma.sync" else tile.num_stages
    barriers = 16 if architecture.matrix_instruction == "tcgen05" else 0
    return ahead * packed + kept * activations + packed // 8 + barriers
