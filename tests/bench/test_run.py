"""Whole runs by the command, without a GPU: what is timed, compared, refused and written."""

import json
import shutil

import pytest
import torch

from nvfp4_suite.bench.__main__ import main
from nvfp4_suite.ci.report import bench

from ..meta.tree import ROOT
from . import quick
from .fake_host import FakeTimer, cells, host, noise

SHAPE = ("--shape", "4x2x64x32", "--tokens", "5")


def bench_of(tmp_path, *arguments, timer=None):
    """The command's exit code, and the rows it wrote."""
    code = main([*SHAPE, *arguments, "--artifacts", str(tmp_path)], host(timer))
    file = tmp_path / "bench.jsonl"
    return code, [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def slower(place: int, by: float = 1.05):
    """A timer to which the contender in that place is slower than the others."""
    return FakeTimer(lambda at, turn: (by if at == place else 1.0) * noise(turn))


@pytest.mark.usefixtures("right")
def test_two_kernels_are_compared(tmp_path, capsys):
    code, rows = bench_of(tmp_path, "--kernel", "right", "--against", "also_right", timer=slower(0))
    assert code == 0
    mine, theirs, grouped = rows
    assert [row["kernel"] for row in rows] == ["right", "also_right", "grouped_mm bf16"]
    assert mine["baseline"] == "also_right" and mine["verdict"] == "slower"
    assert mine["ratio_low"] < mine["ratio"] < mine["ratio_high"] and mine["ratio"] == pytest.approx(1.05, abs=0.01)
    assert mine["milliseconds"] == pytest.approx(1.05, abs=0.01) and mine["noise"] < 0.02
    assert "ratio" not in theirs and "ratio" not in grouped
    assert theirs["over_grouped"] == pytest.approx(1, abs=0.01) and "over_grouped" not in grouped
    assert mine["over_grouped"] == pytest.approx(1 / 1.05, abs=0.01)
    head, *lines = capsys.readouterr().out.splitlines()[2:]
    assert cells(head)[:5] == ["shape", "T", "stage", "kernel", "ms"]
    assert "slower" in lines[0] and "faster" not in "".join(lines)


@pytest.mark.usefixtures("right")
def test_it_is_the_other_way_round_where_the_other_is_slower(tmp_path):
    _, (mine, *_) = bench_of(tmp_path, "--kernel", "right", "--against", "also_right", timer=slower(1))
    assert mine["verdict"] == "faster" and mine["ratio"] == pytest.approx(1 / 1.05, abs=0.01)


@pytest.mark.usefixtures("right")
def test_equal_kernels_are_the_same_on_a_card_that_slows_down(tmp_path):
    timer = FakeTimer(lambda place, turn: (1 + turn / 1000) * noise(turn))
    _, (mine, *_) = bench_of(tmp_path, "--kernel", "right", "--against", "also_right", timer=timer)
    assert mine["verdict"] == "same"


@pytest.mark.usefixtures("right")
def test_a_row_is_one_of_the_report(tmp_path):
    _, (row, *_) = bench_of(tmp_path, "--kernel", "right", "--against", "also_right", "--no-grouped")
    rows, problems = bench.read(tmp_path / "bench.jsonl")
    assert not problems and len(rows) == 2
    assert (rows[0].gpu, rows[0].shape, rows[0].tokens, rows[0].stage) == ("NVIDIA H200", "4x2x64x32", 5, "layer")
    assert rows[0].verdict == "same" and rows[0].error == row["error"] < 2**-8
    flops = 6 * 5 * 2 * 64 * 32
    assert row["tflops"] == pytest.approx(flops / row["milliseconds"] / 1e9)
    assert row["mfu"] == pytest.approx(row["tflops"] / 989)
    assert row["roofline"] == max(row["memory"], row["matrix"])
    assert row["memory"] == pytest.approx(row["moved_bytes"] / row["milliseconds"] / 1e6 / row["copy_gbs"])
    assert row["matrix"] == pytest.approx(row["tflops"] / row["cublas_tflops"])
    assert row["sm_mhz"] == 1980 and row["slowed_by"] == ["power cap"] and row["digest_of"] == "output"
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.usefixtures("right")
def test_a_wrong_output_has_no_row_and_fails_the_run(tmp_path, register, capsys):
    register(quick.kernel("off", lambda out: out * 1.02))
    code, rows = bench_of(tmp_path, "--kernel", "right", "off", "--against", "also_right")
    assert code == 1
    assert [row["kernel"] for row in rows] == ["right", "also_right", "grouped_mm bf16"]
    said = capsys.readouterr().out
    assert "WRONG, so not timed: 4x2x64x32 T = 5 layer: off: " in said and "actual = 1.02 x expected" in said


@pytest.mark.usefixtures("right")
def test_nothing_is_compared_with_what_is_wrong(tmp_path, register):
    register(quick.kernel("off", lambda out: out + 1))
    code, rows = bench_of(tmp_path, "--kernel", "right", "--against", "off", "--no-grouped")
    assert code == 1 and len(rows) == 1 and "ratio" not in rows[0]


@pytest.mark.usefixtures("right")
def test_a_kernel_that_raises_stops_no_other(tmp_path, register, capsys):
    def raises(out):
        raise RuntimeError("out of shared memory")

    register(quick.kernel("raises", raises))
    code, rows = bench_of(tmp_path, "--kernel", "raises", "right", "--no-grouped")
    assert code == 1 and [row["kernel"] for row in rows] == ["right"]
    assert "layer: raises: RuntimeError: out of shared memory" in capsys.readouterr().out


def test_a_kernel_that_forgets_the_last_token_is_wrong(tmp_path, register):
    def forgets(out):
        written = torch.empty_like(out)
        written[:-1] = out[:-1]
        return written

    register(quick.kernel("forgets", forgets))
    assert bench_of(tmp_path, "--kernel", "forgets", "--no-grouped") == (1, [])


def test_a_kernel_that_is_not_finite_outside_the_sample_is_wrong(tmp_path, register):
    def spoils(out):
        out[1, 7] = torch.nan
        return out

    register(quick.kernel("spoils", spoils))
    code, _ = bench_of(tmp_path, "--kernel", "spoils", "--no-grouped", "--sample", "2")
    assert code == 1


@pytest.mark.usefixtures("right")
def test_yardsticks_that_are_wrong_end_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "mm", lambda a, b, out: out.copy_((a.float() @ b.float()) * 1.02))
    assert bench_of(tmp_path, "--kernel", "right") == (1, [])
    assert "the yardstick's product of 32 x 32 leaves its enclosure" in capsys.readouterr().err


def test_kernels_of_todays_tree_run_in_the_interpreter(tmp_path):
    """The planned kernel by its registry entry, by a tile and from another folder: one digest, as inputs are equal."""
    other = shutil.copytree(ROOT / "kernels", tmp_path / "other", ignore=shutil.ignore_patterns("__pycache__"))
    arguments = ("--kernel", "prefill", "prefill@m32", "--against-folder", str(other), "--no-grouped")
    code = main(["--shape", "2x1x32x16", "--tokens", "2", *arguments, "--artifacts", str(tmp_path)], host())
    rows, _ = bench.read(tmp_path / "bench.jsonl")
    assert code == 0 and len(rows) == 3
    assert len({row.digest for row in rows}) == 1
    assert [row.kernel for row in rows[:2]] == ["prefill", "prefill@m32,n64,kb32,w4,s3"]
    assert rows[2].kernel == f"prefill at {other}"


def test_stages_have_rows_of_their_own(tmp_path):
    arguments = ["--shape", "2x1x32x16", "--tokens", "2", "--kernel", "decode", "--stage", "gate_up,down"]
    code = main([*arguments, "--artifacts", str(tmp_path)], host())
    rows, _ = bench.read(tmp_path / "bench.jsonl")
    assert code == 0
    assert [(row.stage, row.kernel) for row in rows] == [
        ("gate_up", "decode"),
        ("gate_up", "grouped_mm bf16"),
        ("down", "decode"),
        ("down", "grouped_mm bf16"),
    ]
    assert all(row.mfu is None for row in rows)  # which is a whole layer's


def test_a_kernel_is_given_the_banks_that_it_takes(tmp_path, register):
    """Input scales only where it quantizes activations; and what it prepared, once for all tokens."""
    seen = []

    def prepare(banks):
        seen.append(banks.gate_up_input_scale is not None)
        return banks

    kernels = [quick.kernel("four", formats=("w4a4",), rounding="w4a16"), quick.kernel("sixteen")]
    for one in kernels:
        object.__setattr__(one, "prepare", prepare)
    register(*kernels)
    arguments = ["--shape", "4x2x64x32", "--tokens", "1,2,3", "--kernel", "four", "sixteen", "--no-grouped"]
    assert main(arguments, host()) == 0
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kernel", "nobody"), "the kernel is 'nobody', but should be one of auto"),
        (("--kernel", "decode", "--stage", "align"), "--stage is 'align', but decode_w4a16 has no such stage"),
        (("--stage", "softmax"), "'softmax' should be of layer, align"),
        (("--against-revision", "HEAD", "--against-folder", "kernels"), "should be one of them"),
        (("--self-test", "--against", "decode"), "take one --kernel, one --stage and nothing to compare"),
        (("--sweep", "--kernel", "decode"), "a sweep's should be prefill or one of"),
        (("--sweep", "--tiles", "x=3"), "--tiles is 'x=3', but should read m=16,32;n=64"),
        (("--sample", "0"), "0 should be at least 1"),
        (("--budget", "0"), "0 should be above 0"),
    ],
)
def test_what_cannot_be_is_said_at_once(tmp_path, arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        bench_of(tmp_path, *arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_no_gpu_is_no_pass(monkeypatch, capsys):
    from nvfp4_suite.ci import gpus

    def none():
        raise gpus.NoGpu("needs a CUDA GPU, but NVML finds none")

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(gpus, "mine", none)
    assert main(["--tier=smoke"]) == 1
    assert "bench needs a CUDA GPU, but NVML finds none" in capsys.readouterr().err


def test_other_code_is_not_timed(monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main(["--tier=smoke"]) == 1
    assert "TRITON_INTERPRET, which should be unset" in capsys.readouterr().err
