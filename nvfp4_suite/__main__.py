"""Shows what dispatch chooses, for any card, and replays a failure, on any machine.

python -m nvfp4_suite plan --gpu "RTX 4090" --shape GLM-4.7 --tokens 4096    needs neither torch nor triton
python -m nvfp4_suite replay build/gpu-tests/NVIDIA-H200/failures/...        on a GPU, or else in the interpreter
"""

import argparse
import sys
from pathlib import Path

from .contract import gpus
from .contract.kernel import ACTIVATIONS, DTYPES
from .contract.shapes import CHECKPOINTS
from .kernels.page import page
from .kernels.plan import KERNELS, plan_layer
from .kernels.releases import TRITONS


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: the plan is on stdout, or the failure is none here. 1: it is one. 2: wrong arguments, on stderr."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return options.command(options)
    except ValueError as error:
        parser.error(str(error))


def _plan(options: argparse.Namespace) -> int:
    gpu, name = gpus.named(options.gpu), _checkpoint(options.shape)
    names = ("dtype", "activation", "weight_on_input", "input_scales", "kernel", "triton")
    choices = {name: getattr(options, name) for name in names}
    print(page(plan_layer(gpu, CHECKPOINTS[name], options.tokens, **choices), gpu, name))
    return 0


def _replay(options: argparse.Namespace) -> int:
    from .ci.replay import replay

    return replay(options.bundle, options.engine)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nvfp4_suite", description="shows plans, and replays failures")
    commands = parser.add_subparsers(required=True, metavar="plan | replay")
    replay = commands.add_parser("replay", help="run a failure again, from the folder that it was written to")
    replay.set_defaults(command=_replay)
    replay.add_argument("bundle", type=Path, metavar="BUNDLE")
    replay.add_argument("--engine", choices=("gpu", "interpreter"), help="default: the GPU where there is one")
    plan = commands.add_parser("plan", help="the kernels and tiles of one layer on one card")
    plan.set_defaults(command=_plan)
    plan.add_argument("--gpu", required=True, help='a card of the catalog, also by a part of its name: "RTX 4090"')
    plan.add_argument("--shape", required=True, metavar="NAME", help=f"a checkpoint: {', '.join(CHECKPOINTS)}")
    plan.add_argument("--tokens", required=True, type=int)
    plan.add_argument("--dtype", choices=DTYPES, default="bf16", help="of the activations; default: bf16")
    plan.add_argument("--activation", choices=ACTIVATIONS, default="silu", help="default: silu")
    plan.add_argument("--weight-on-input", action="store_true", help="routing weights are applied before gate_up")
    plan.add_argument("--input-scales", action="store_true", help="the checkpoint has them, so W4A4 can be")
    plan.add_argument("--triton", choices=TRITONS, default="3.8.0", help="default: 3.8.0")
    plan.add_argument("--kernel", choices=KERNELS, default="auto", help="default: auto")
    return parser


def _checkpoint(text: str) -> str:
    """The name of the checkpoint that `text` is in any case."""
    found = [name for name in CHECKPOINTS if name.lower() == text.lower()]
    if not found:
        raise ValueError(f"--shape is {text!r}, but should be one of {', '.join(CHECKPOINTS)}")
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
