"""Times whole layers and their stages, right ones alone, two kernels against each other in turns.

python -m nvfp4_suite.bench --tier=smoke                                  what the nightly run does
python -m nvfp4_suite.bench --shape GLM-4.7 --tokens 1024,8192 --stage gate_up
python -m nvfp4_suite.bench --kernel prefill@m64 --against prefill@m128,n64,kb32,w4,s3 --shape all --tokens 4096
python -m nvfp4_suite.bench --against-revision HEAD~1 --tier=ci           today's kernels/ against those
python -m nvfp4_suite.bench --kernel w4a4 --against prefill --shape all --tokens 8192,16384,32768 --no-grouped
python -m nvfp4_suite.bench --sweep --stage gate_up --shape GLM-4.7 --tokens 256,4096 --tiles "n=64;w=4"
python -m nvfp4_suite.bench --self-test                                   whether it can be trusted on this card

Exit code 0: all was right and has a time. 1: a wrong output, a self-test that failed, or no GPU. 2: wrong arguments.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from ..contract.case import TIERS
from . import points
from .roofline import STAGES

ROOT = Path(__file__).resolve().parent.parent
SELF_TEST = ([points.LAYERS["Qwen3.6-35B-A3B"]], [1024, 8192])
DEFAULT = "auto"


def main(arguments: list[str] | None = None, host=None) -> int:
    """`host` is a Host to run on, None for this process's GPU."""
    command = parser()
    options = command.parse_args(arguments)
    if host is None:
        from ..ci.gpus import NoGpu
        from .host import find

        try:
            host = find()
        except NoGpu as error:
            print(f"bench {error}", file=sys.stderr)
            return 1
    from ..ci.golden_file import Refused
    from .check import Wrong

    with tempfile.TemporaryDirectory(prefix="nvfp4-bench-") as work:  # as long as kernels of other revisions are used
        try:
            return _run(options, host, Path(work))
        except (Refused, ValueError) as error:
            command.error(str(error))
        except Wrong as error:
            print(f"WRONG: {error}", file=sys.stderr)
            return 1


def _run(options: argparse.Namespace, host, work: Path) -> int:
    from . import run, self_test, sweep, sweep_run

    request = _request(options, work)
    print(host.line, flush=True)
    if options.self_test:
        found, lines = self_test.run(request, host)
        bad = not all(line.good for line in lines)
    elif options.sweep:
        found, lines = sweep_run.run(request, host, sweep.grid(options.tiles))
        bad = False
    else:
        found, bad = run.run(request, host), False
        lines = _report(found.rows)
    print(*lines, *found.wrong, sep="\n", flush=True)
    return 1 if bad or found.wrong else 0


def _report(rows: list[dict]) -> list[str]:
    """Yardsticks, the table, and its means."""
    from .table import means, table

    if not rows:
        return []
    ranges = [(min(row[name] for row in rows), max(row[name] for row in rows)) for name in _YARDSTICKS]
    clocks = [row["sm_mhz"] for row in rows if "sm_mhz" in row]
    slowed = sorted({reason for row in rows for reason in row.get("slowed_by", ())})
    said = [f"{text} {low:.0f} to {high:.0f}" for text, (low, high) in zip(_YARDSTICKS.values(), ranges, strict=True)]
    said += [f"SM clock {min(clocks)} to {max(clocks)} MHz"] if clocks else []
    said += [f"slowed by {', '.join(slowed)}"] if slowed else []
    return ["; ".join(said), *table(rows), *means(rows)]


_YARDSTICKS = {"cublas_tflops": "cuBLAS bf16 8192^3 TFLOP/s", "copy_gbs": "copy GB/s read plus written"}


def _request(options: argparse.Namespace, work: Path):
    """What the options ask for. Raises ValueError or Refused for what cannot be."""
    from .run import Request
    from .subjects import parse

    layers, tokens = points.layers_of(options.tier, options.shape), points.tokens_of(options.tier, options.tokens)
    if options.self_test:
        layers, tokens = layers if options.shape else SELF_TEST[0], tokens if options.tokens else SELF_TEST[1]
    subjects = [parse(name) for name in options.kernel]
    baseline = _baseline(options, work)
    alone = options.sweep or options.self_test
    if alone and (baseline or len(subjects) > 1 or len(options.stage) > 1):
        raise ValueError("--sweep and --self-test take one --kernel, one --stage and nothing to compare it with")
    names = ("budget", "sample", "artifacts")
    rest = {name: getattr(options, name) for name in names}
    return Request(layers, tokens, options.stage, subjects, baseline, not (options.no_grouped or alone), **rest)


def _baseline(options: argparse.Namespace, work: Path):
    """The subject that others are compared with; in other kernels/, by the name that --against or --kernel gives."""
    from . import revisions
    from .subjects import parse

    if options.against_revision and options.against_folder:
        raise ValueError("--against-revision and --against-folder are both given, but should be one of them")
    kernels = revisions.TODAY
    if options.against_revision:
        kernels = revisions.from_revision(options.against_revision, ROOT, work)
    if options.against_folder:
        kernels = revisions.from_folder(options.against_folder)
    if kernels is revisions.TODAY and not options.against:
        return None
    return parse(options.against or options.kernel[0], kernels)


def parser() -> argparse.ArgumentParser:
    """The command line's; imports neither torch nor Triton."""
    command = argparse.ArgumentParser(
        prog="python -m nvfp4_suite.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = command.add_argument
    add("--tier", choices=TIERS, default="all", help="which layers and tokens, where these are not given; default: all")
    add("--shape", type=_words, default=[], metavar="NAME,...", help='checkpoints, "all", or 8x2x128x64[/gelu]')
    add("--tokens", type=_numbers, default=[], metavar="T,...")
    add("--stage", type=_stages, default=["layer"], metavar="S,...", help=f"of {', '.join(STAGES)}; default: layer")
    add("--kernel", nargs="+", default=[DEFAULT], metavar="A", help="registry names, or A@m64,n64,kb32,w4,s3")
    add("--against", metavar="B", help="what the kernels are compared with, in the same rounds")
    add("--against-revision", metavar="REV", help="the kernels/ of a git revision; --against is then a name there")
    add("--against-folder", type=Path, metavar="DIR", help="the same from a folder, where there is no git")
    add("--no-grouped", action="store_true", help="leave out torch._grouped_mm, whose weights take 4 times the memory")
    add("--budget", type=_positive, default=0.25, metavar="S", help="seconds of timed rounds a point; default: 0.25")
    add("--sample", type=_whole, default=16, metavar="N", help="tokens judged element by element; default: 16")
    add("--sweep", action="store_true", help="time all tiles; name the best, and a tuning entry")
    add("--tiles", default="", metavar="GRID", help='of a sweep: "m=16,32;n=64;kb=32;w=4;s=3", or a part of it')
    add("--self-test", action="store_true", help="whether an injected slowdown of 3 %% is reported, and nothing else")
    add("--artifacts", type=Path, metavar="DIR", help="write DIR/bench.jsonl")
    return command


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in _words(text)]


def _stages(text: str) -> list[str]:
    unknown = [word for word in _words(text) if word not in STAGES]
    if unknown or not _words(text):
        raise argparse.ArgumentTypeError(f"{text!r} should be of {', '.join(STAGES)}")
    return _words(text)


def _positive(text: str) -> float:
    if not 0 < float(text) < 3600:
        raise argparse.ArgumentTypeError(f"{text} should be above 0 and below 3600")
    return float(text)


def _whole(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} should be at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
