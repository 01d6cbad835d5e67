"""Runs the launches of hopper.py on tensors."""

from torch import Tensor

from ..contract.banks import ExpertBanks
from .arguments import as_declared, check_sizes
from .columns import by_columns
from .hopper import K_UNIT
from .launch import Launch, start
from .plan import LayerPlan

Weights = tuple[Tensor, Tensor, Tensor]  # packed u8 [E, N, K/2], block scales e4m3 [E, N, K/16], global f32 [E, N]


def run_experts(plan: LayerPlan, x: Tensor, banks: ExpertBanks, routed: tuple[int, dict], **options: float) -> Tensor:
    """[R, H], a row per route: what such a plan does between the weights on the input and the sum over top_k.

    `x` is [T, H], or [R, H] with a row per route; `routed` as experts.routed_by gives it; `options` are
    activation_alpha and activation_limit.
    """
    weights = banks.gate_up_packed, banks.gate_up_scale, banks.gate_up_global
    h = gate_up(plan.launch("gate_up"), interleave_k(plan.launch("interleave_k"), x), weights, routed, **options)
    return down(plan.launch("down"), h, (banks.down_packed, banks.down_scale, banks.down_global), routed)


def interleave_k(launch: Launch, x: Tensor) -> Tensor:
    """`x` [R, K] with the K of each 64 in the order that the GEMMs read. Raises ValueError for another K."""
    if x.shape[1] % K_UNIT:
        raise ValueError(f"columns is {x.shape[1]}, but should be a multiple of {K_UNIT} in {launch.stage}")
    out = x.new_empty(x.shape)
    by_columns(launch, x=x, out=out)
    return out


def gate_up(launch: Launch, x: Tensor, weights: Weights, routed: tuple[int, dict], **options: float) -> Tensor:
    """f(gate) * up, [R, I] with I interleaved, of interleaved `x`; `options` as in run_experts."""
    blocks, lists = routed
    lists = {name: value for name, value in lists.items() if name != "topk_weights"}
    columns = weights[0].shape[1] // 2
    out = x.new_empty(lists["routes"], columns)
    grid = (blocks * columns * 2 // launch.constexpr("BLOCK_N"),)
    rows_per_input = lists["routes"] // len(x)
    start(
        launch,
        grid,
        **_operands(launch, x, weights, columns),
        out=out,
        **lists,
        rows_per_input=rows_per_input,
        **options,
    )
    return out


def down(launch: Launch, h: Tensor, weights: Weights, routed: tuple[int, dict]) -> Tensor:
    """[R, H] of `h` as gate_up stores it."""
    blocks, lists = routed
    columns = weights[0].shape[1]
    out = h.new_empty(len(h), columns)
    grid = (blocks * columns // launch.constexpr("BLOCK_N"),)
    start(launch, grid, **_operands(launch, h, weights, columns), out=out, **lists)
    return out


def _operands(launch: Launch, x: Tensor, weights: Weights, columns: int) -> dict[str, Tensor | int]:
    check_sizes(launch, k=x.shape[1], N=columns)
    of_tile = launch.constexpr("BLOCK_N") // (2 if launch.stage == "gate_up" else 1)
    steps, stages, rest = x.shape[1] // K_UNIT, launch.constexpr("STAGES"), launch.constexpr("REST")
    if columns % of_tile:
        raise ValueError(f"N is {columns}, but should be a multiple of {of_tile} in {launch.stage}")
    if steps % stages != rest or steps < stages - 2:
        should = f"{rest} steps of {K_UNIT} more than a multiple of {stages}, and at least {stages - 2}"
        raise ValueError(f"K is {x.shape[1]}, but should be {should}")
    packed, scale = (as_declared(launch, name, one) for name, one in zip(("packed", "scale"), weights, strict=False))
    k_units = x.shape[1] // launch.constexpr("K_UNIT")
    return {"x": x, "packed": packed, "scale": scale, "global_scale": weights[2], "N": columns, "k_units": k_units}
