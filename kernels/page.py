"""A plan as a page that a person reads. Pure: neither torch nor triton."""

from ..contract.gpu_names import speed_class
from ..contract.gpus import Gpu, architecture, is_known
from . import decode, hopper_gemv, padding, w4a4
from .launch import Launch
from .plan import LayerPlan
from .tiles import Tile, shared_memory
from .tuning import RAGGED_SOURCE, VARIANT_SOURCE, tuning_of
from .variants import DEFAULT, FORMS, VARIANTS, Variant

_HEAD = ("launch", "kernel", "compiled for", "warps", "stages", "shared / limit", "instruction")
_RIGHT = {"warps", "stages", "shared / limit"}


def page(plan: LayerPlan, gpu: Gpu, shape: str) -> str:
    """What runs on `gpu` for the layer of the checkpoint `shape`, why, where that is known from, and what it pads."""
    layer = plan.shape
    sizes = f"{layer.experts} experts, top {layer.top_k}, hidden {layer.hidden}, intermediate {layer.intermediate}"
    facts = {
        "card": _card(gpu),
        "layer": f"{shape}: {sizes}; {plan.tokens:,} tokens, {plan.dtype}",
        "kernel": plan.kernel,
        "why": plan.reason,
        "source": _source(plan, gpu),
        "padded": _padded(plan),
    }
    lines = [f"{name:8}{fact}" for name, fact in facts.items()]
    return "\n".join([*lines, f"{len(plan.launches)} launches", "", *_table(plan, gpu)])


def _source(plan: LayerPlan, gpu: Gpu) -> str:
    """Where what chose the kernel and its tiles is known from."""
    if not plan.launches:
        return "none: nothing is chosen"
    if plan.reason.startswith(("as asked", "override")):
        return "none: as asked"
    if plan.kernel in (decode.NAME, hopper_gemv.NAME):
        return tuning_of(gpu).decode_source
    if plan.kernel in w4a4.FORMS:
        return w4a4.AUTO_SOURCE
    source = tuning_of(gpu).source if plan.kernel == DEFAULT else VARIANT_SOURCE
    ragged = plan.shape.hidden % 32 or plan.shape.intermediate % 32
    return f"{source}; {RAGGED_SOURCE}" if ragged and not VARIANTS[plan.kernel].two_dots else source


def _card(gpu: Gpu) -> str:
    speed = speed_class(gpu)
    where = "unknown architecture" if not is_known(gpu) else "sm_{}{}".format(*gpu.capability)
    return f"{gpu.name}: {where}, class {speed.name} (rho {speed.rho:g})"


def _padded(plan: LayerPlan) -> str:
    """Rows that the GEMMs multiply for each routed one, and the least that the blocks of the table could have."""
    blocks = plan.launch("list_blocks")
    if not blocks:
        return "nothing"
    block_m = blocks.constexpr("BLOCK_M")
    least = padding.expected_ratio(plan.shape, plan.tokens, min(16, block_m))
    return f"{plan.padded_ratio:.2f} rows for each routed one (random routing); blocks of 16 would make it {least:.2f}"


def _table(plan: LayerPlan, gpu: Gpu) -> list[str]:
    rows = [_HEAD, *(_row(launch, gpu) for launch in plan.launches)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for cell, width, name in zip(row, widths, _HEAD, strict=True)
        ).rstrip()
        for row in rows
    ]


def _row(launch: Launch, gpu: Gpu) -> tuple[str, ...]:
    constants = " ".join(_constant(name, value) for name, value in launch.constexprs if value is not False)
    return (
        launch.stage,
        launch.kernel.rpartition(".")[2],
        constants,
        str(launch.num_warps),
        str(launch.num_stages),
        _memory(launch, gpu),
        launch.instruction or "",
    )


def _constant(name: str, value: object) -> str:
    """A flag by its name where it is set, a string as it is, a size with its name."""
    return name if value is True else value if isinstance(value, str) else f"{name} {value}"


def _memory(launch: Launch, gpu: Gpu) -> str:
    """Of a GEMM, in bytes a block; nothing is said of launches whose shared memory no plan depends on."""
    if launch.kernel not in FORMS.values():
        return ""
    form = next(form for form, kernel in FORMS.items() if kernel == launch.kernel)
    variant = Variant(form, scale_words=dict(launch.constexprs).get("SCALE_WORDS", False))
    sizes = (launch.constexpr(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_KB"))
    needed = shared_memory(Tile(*sizes, launch.num_warps, launch.num_stages), architecture(gpu), variant)
    return f"{needed:,} / {architecture(gpu).shared_memory:,}"
