"""Tuning records: which tiles a speed class runs on a capability, and where that is known from. Pure."""

from dataclasses import dataclass, replace

from ..contract.gpu_names import DATA_CENTER, GEFORCE, H20, ORIN, RTX_PRO, SpeedClass, speed_class
from ..contract.gpus import Gpu, architecture, is_known
from .tiles import Tile, matrix_instruction, most_block_m
from .variants import DEFAULT, VARIANTS, WORD_K, Variant

Steps = tuple[tuple[int, Tile], ...]  # (at least so many tokens per expert, tile), the largest first


@dataclass(frozen=True)
class ScaleWords:
    """The default kernel loads block scales as words in GEMMs with blocks of `block_m`, where K is of whole words.

    From a K of `long_k` on these GEMMs have `warps`.
    """

    block_m: int
    long_k: int
    warps: int


@dataclass(frozen=True)
class Tuning:
    """What one kind of card runs of the default kernel, and where "auto" takes the decode kernel instead.

    `source` and `decode_source` say where that is from: pull requests of FlashML-org/FreeToken, our own measurement, or
    "by reasoning". `decode_up_to` is in tokens per expert.
    """

    steps: Steps
    source: str
    scale_words: ScaleWords | None = None
    decode_up_to: float = 1.25
    decode_source: str = "by reasoning: as an H200"


def _steps(small: Tile, large: Tile, thresholds: tuple[tuple[int, int], ...]) -> Steps:
    """A tile for each (at least so many tokens per expert, BLOCK_M): like `small` for blocks below 64."""
    return tuple((least, replace(large if block_m >= 64 else small, block_m=block_m)) for least, block_m in thresholds)


# FreeToken#723: "BLOCK_N 64, 4 warps and 3 stages", from a sweep on an H100. For RTX cards it says "KB 64 and N 128 at
# small blocks". That small is below 64, and that the other sizes stay, is our reasoning: with 8 warps a block of 32
# spills on sm_86 and sm_120.
PLAIN = Tile(16)
RTX_SMALL = Tile(16, block_n=128, block_kb=64)

# (at least so many tokens per expert, BLOCK_M), all but the last from FreeToken#723: for a rho of at least 8, for RTX
# PRO and for GeForce. The last and the scale words are from FreeToken's "pipeline the nvfp4 prefill scale loads on
# geforce sm_86 / sm_89", PIPELINED below.
BLOCK_M_STEPS = ((64, 128), (24, 64), (12, 32), (0, 16))
RTX_PRO_STEPS = ((150, 128), (36, 64), (16, 32), (0, 16))
GEFORCE_STEPS = ((150, 64), (16, 32), (0, 16))
GEFORCE_86_STEPS = ((100, 64), (16, 32), (0, 16))

GEFORCE_WORDS = ScaleWords(block_m=64, long_k=2048, warps=8)

_H100 = _steps(PLAIN, PLAIN, BLOCK_M_STEPS)
_RTX_PRO = _steps(RTX_SMALL, PLAIN, RTX_PRO_STEPS)
_GEFORCE = _steps(RTX_SMALL, PLAIN, GEFORCE_STEPS)
_GEFORCE_86 = _steps(RTX_SMALL, PLAIN, GEFORCE_86_STEPS)
_LOW_RHO = _steps(PLAIN, PLAIN, RTX_PRO_STEPS)

PIPELINED = 'FreeToken "pipeline the nvfp4 prefill scale loads on geforce"'

# Prefill over decode, whole layer, by tokens per expert: at least 1.1 up to 1.25, at most 1 from 1.9.
MEASURED_DECODE = "ours, H200: on nine shapes both take the same time at 1.4 to 1.9"

# Looked up as (class, capability), then as (class, None).
RECORDS: dict[tuple[SpeedClass, tuple[int, int] | None], Tuning] = {
    (DATA_CENTER, (9, 0)): Tuning(_H100, "FreeToken#723, sweep on an H100", decode_source=MEASURED_DECODE),
    (DATA_CENTER, (8, 0)): Tuning(_H100, "FreeToken#723, as an H100, not measured"),
    (DATA_CENTER, None): Tuning(_H100, "by reasoning: as an H100, rho is at least 8"),
    (ORIN, None): Tuning(_H100, "by reasoning: as an H100, rho is at least 8"),
    (H20, None): Tuning(_LOW_RHO, "FreeToken#723, not measured: rho is 3.4, tiles are an H100's"),
    (RTX_PRO, (12, 0)): Tuning(_RTX_PRO, "FreeToken#723, sweep on an RTX PRO 6000"),
    (RTX_PRO, (8, 6)): Tuning(_RTX_PRO, "FreeToken#723, as an RTX PRO 6000, not measured"),
    (RTX_PRO, (8, 9)): Tuning(_RTX_PRO, "FreeToken#723, as an RTX PRO 6000, not measured"),
    (RTX_PRO, (12, 1)): Tuning(_RTX_PRO, "by reasoning: as sm_120, whose SM it has"),
    (RTX_PRO, None): Tuning(_LOW_RHO, "by reasoning: rho is taken for 4, tiles are an H100's"),
    (GEFORCE, (12, 0)): Tuning(_GEFORCE, "FreeToken#723, sweep on an RTX 5090"),
    (GEFORCE, (8, 9)): Tuning(_GEFORCE, f"FreeToken#723, sweep on an RTX 4090; {PIPELINED}", GEFORCE_WORDS),
    (GEFORCE, (8, 6)): Tuning(_GEFORCE_86, f"FreeToken#723, sweep on an RTX 3080 Ti; {PIPELINED}", GEFORCE_WORDS),
    (GEFORCE, None): Tuning(_steps(PLAIN, PLAIN, GEFORCE_STEPS), "by reasoning: rho is 2, tiles are an H100's"),
}

# For a GPU whose architecture is unknown: with emulated e4m3, a block of 128 needs more registers than sm_120 has.
PORTABLE_BLOCK_M_STEPS = RTX_PRO_STEPS[1:]
PORTABLE_TUNING = Tuning(_LOW_RHO[1:], "by reasoning: rho is taken for 4, tiles compile everywhere")

# For the variants that are kept for comparison: two blocks, so that few binaries are to be gated. Of two dots, some
# architectures spill a register or two of the pair form at 16 rows, and of the table form at 64 rows with 4 warps.
VARIANT_SOURCE = "by reasoning: two blocks, as few binaries to gate as can be"
VARIANT_STEPS: Steps = ((24, Tile(64)), (0, Tile(16)))
TWO_DOTS_STEPS: Steps = ((24, Tile(64, num_warps=8)), (0, Tile(32)))

# Bytes of K a step where K is an odd multiple of 16: rows then allow loads of 8 bytes only, and with 32 bytes a step
# their addresses alone make sm_86 and sm_89 spill.
RAGGED_BLOCK_KB = 16
RAGGED_SOURCE = "a ragged K by reasoning: smaller steps, which spill nowhere"


def tuning_of(gpu: Gpu) -> Tuning:
    """The record of `gpu`; the portable one where its architecture is unknown."""
    if not is_known(gpu):
        return PORTABLE_TUNING
    found = speed_class(gpu)
    return RECORDS.get((found, gpu.capability)) or RECORDS[found, None]


def steps_of(gpu: Gpu, variant: Variant) -> Steps:
    """What `variant` chooses from on `gpu`."""
    if variant == VARIANTS[DEFAULT]:
        return tuning_of(gpu).steps
    most = most_block_m(gpu, variant)
    steps = TWO_DOTS_STEPS if variant.two_dots else VARIANT_STEPS
    return tuple((least, tile) for least, tile in steps if most is None or tile.block_m <= most)


def block_m_steps(gpu: Gpu, variant: Variant) -> tuple[tuple[int, int], ...]:
    """(at least so many tokens per expert, BLOCK_M), the largest first: what `variant` chooses from on `gpu`."""
    return tuple((least, tile.block_m) for least, tile in steps_of(gpu, variant))


def for_gemm(gpu: Gpu, tile: Tile, k: int, variant: Variant, words: ScaleWords | None = None) -> Tile:
    """`tile` as a GEMM over `k` has it on `gpu`. `words` are those that the tuning of the default kernel turns on."""
    if variant.two_dots:
        return replace(tile, num_stages=2) if k % 32 and _spills_in_three_stages(gpu, tile, variant) else tile
    if k % 32:  # one tile on all cards: no published layer has such a K, and each tile is more to gate
        return Tile(tile.block_m, block_kb=RAGGED_BLOCK_KB)
    if words and tile.block_m == words.block_m and k >= words.long_k and k % WORD_K == 0:
        return replace(tile, num_warps=words.warps)
    return tile


def _spills_in_three_stages(gpu: Gpu, tile: Tile, variant: Variant) -> bool:
    """Whether two dots on a ragged K take too many registers.

    With 3 stages the pair form's gate_up spills 16 bytes on sm_80, 86 and 89 with Triton 3.6.0, 8 bytes on the latter
    two with 3.9.0. With 2, neither form spills under any release on an architecture without wgmma. All of these have
    the one tile, whatever the release.
    """
    return tile.block_m >= 64 and matrix_instruction(tile, architecture(gpu), variant) == "mma.sync"
