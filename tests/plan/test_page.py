"""The command that shows a plan: the whole page, and what it says of arguments that are wrong."""

import pytest

from nvfp4_suite.__main__ import main
from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.gpus import CATALOG
from nvfp4_suite.contract.kernel import ACTIVATIONS, DTYPES
from nvfp4_suite.contract.shapes import CHECKPOINTS
from nvfp4_suite.kernels.page import page
from nvfp4_suite.kernels.plan import plan_layer

from ..meta.tree import ROOT, run_python

COMMAND = ["plan", "--gpu", "RTX 4090", "--shape", "GLM-4.7", "--tokens"]
PREFILL = """\
card    NVIDIA GeForce RTX 4090: sm_89, class GeForce (rho 2)
layer   GLM-4.7: 160 experts, top 8, hidden 5120, intermediate 1536; 4,096 tokens, bf16
kernel  prefill_w4a16
why     205 tokens per expert, GeForce sm_89: block 64
source  FreeToken#723, sweep on an RTX 4090; FreeToken "pipeline the nvfp4 prefill scale loads on geforce"
padded  1.19 rows for each routed one (random routing); blocks of 16 would make it 1.04
8 launches

launch        kernel            compiled for                                                      warps  stages    shared / limit  instruction
count_routes  count_routes      CHUNK 128 BLOCK_E 64                                                  4       1
scan_counts   scan_counts       BLOCK_C 128 BLOCK_E 16                                                4       1
list_blocks   list_blocks       BLOCK_M 64 EXPERTS 512                                                4       1
place_routes  place_routes      CHUNK 128                                                             4       1
gate_up       w4a16_gemm        BLOCK_M 64 BLOCK_N 64 BLOCK_KB 32 K_UNIT 64 SCALE_WORDS               8       3  29,184 / 101,376  mma.sync
activation    gated_activation  silu BLOCK 512                                                        4       1
down          w4a16_gemm        BLOCK_M 64 BLOCK_N 64 BLOCK_KB 32 K_UNIT 64 WEIGHTED SCALE_WORDS      4       3  29,184 / 101,376  mma.sync
sum_routes    sum_routes        BLOCK 512                                                             4       1
"""  # noqa: E501


def test_the_page_of_a_prefill_plan_needs_neither_torch_nor_triton():
    hidden = "import sys; sys.modules.update(dict.fromkeys(['torch', 'triton', 'numpy']))"
    program = f"{hidden}\nfrom nvfp4_suite.__main__ import main\nmain({[*COMMAND, '4096']})"
    child = run_python("-c", program, cwd=ROOT)
    assert (child.stdout, child.stderr) == (PREFILL, "")


def test_the_command_is_a_module():
    child = run_python("-m", "nvfp4_suite", *COMMAND, "4096", cwd=ROOT)
    assert (child.returncode, child.stdout) == (0, PREFILL)


def test_the_page_of_a_decode_plan(capsys):
    assert main([*COMMAND, "20"]) == 0
    head, table = capsys.readouterr().out.split("\n\n")
    assert head.splitlines()[2:] == [
        "kernel  decode_w4a16",
        "why     1 tokens per expert, GeForce sm_89: a GEMV for each route",
        "source  by reasoning: as an H200",
        "padded  nothing",
        "4 launches",
    ]
    assert [line.split()[0] for line in table.splitlines()] == ["launch", "gate_up", "activation", "down", "sum_routes"]


def test_options_reach_the_plan(capsys):
    assert main([*COMMAND, "20", "--dtype", "fp16", "--kernel", "prefill", "--weight-on-input"]) == 0
    out = capsys.readouterr().out
    assert "20 tokens, fp16" in out and "kernel  prefill_w4a16\n" in out and "\nweigh_input " in out


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("kernel", ["auto", "prefill_w4a16_words", "prefill_w4a16_pair", "prefill_w4a16_table"])
def test_every_plan_has_a_page(gpu, kernel):
    for tokens in (0, 1, 100, 4096):
        plan = plan_layer(gpu, CHECKPOINTS["GLM-4.7"], tokens, kernel=kernel)
        lines = page(plan, gpu, "GLM-4.7").splitlines()
        assert f"{len(plan.launches)} launches" in lines
        assert [line.split()[0] for line in lines[9:]] == [launch.stage for launch in plan.launches]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("rtx 5090", "NVIDIA GeForce RTX 5090"),
        ("H20", "NVIDIA H20"),
        ("L40", "NVIDIA L40"),
        ("L40S", "NVIDIA L40S"),
        ("A100", "NVIDIA A100-SXM4-80GB"),
        ("orin", "Orin"),
        *((gpu.name, gpu.name) for gpu in CATALOG),
    ],
)
def test_a_part_of_a_name_finds_its_card(text, name):
    assert gpus.named(text).name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RTX 4080", "^the GPU 'RTX 4080' is no card of the catalog, .* one: .*NVIDIA GeForce RTX 4090"),
        ("GeForce RTX 30", "names several cards, .* one: NVIDIA GeForce RTX 3080 Ti, NVIDIA GeForce RTX 3090$"),
        ("", f"is no card of the catalog, .* one: {', '.join(gpu.name for gpu in CATALOG)}$"),
        ("xyzzy", "is no card of the catalog, .* one: NVIDIA A100-SXM4-80GB, "),
    ],
)
def test_a_name_that_finds_no_card_or_several_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        gpus.named(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "RTX 4080"], "error: the GPU 'RTX 4080' is no card of the catalog"),
        (["--shape", "GLM"], "error: --shape is 'GLM', but should be one of Qwen3.6-35B-A3B, "),
        (["--tokens", "-1"], "error: tokens is -1, but should be at least 0"),
        (["--dtype", "fp32"], "invalid choice: 'fp32'"),
    ],
)
def test_wrong_arguments_are_said_in_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*COMMAND, "16", *arguments])
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_choices_are_those_of_the_plan():
    for option, values in (("--dtype", DTYPES), ("--activation", ACTIVATIONS)):
        assert all(main([*COMMAND, "16", option, value]) == 0 for value in values)
