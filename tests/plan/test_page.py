"""The command that shows a plan: the whole page, and what it says of arguments that are wrong."""

import pytest

from nvfp4_suite.__main__ import main
from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.gpus import CATALOG
from nvfp4_suite.contract.kernel import ACTIVATIONS, DTYPES
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels.page import page
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.tiles import Tile
from nvfp4_suite.kernels.w4a4 import AUTO_SOURCE

from ..meta.tree import ROOT, run_python

GLM = CHECKPOINTS["GLM-4.7"]
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


RAGGED = LayerShape(4, 2, 272, 80)
SWEPT = 'FreeToken#723, sweep on an RTX 4090; FreeToken "pipeline the nvfp4 prefill scale loads on geforce"'
BY_REASON = "by reasoning: two blocks, as few binaries to gate as can be"
RAGGED_K = "; a ragged K by reasoning: smaller steps, which spill nowhere"


@pytest.mark.parametrize(
    ("gpu", "shape", "tokens", "options", "source"),
    [
        ("RTX 4090", GLM, 4096, {}, SWEPT),
        ("RTX 4090", GLM, 4096, {"kernel": "prefill"}, SWEPT),
        ("RTX 4090", GLM, 4096, {"kernel": "prefill_w4a16_pair"}, BY_REASON),
        ("RTX 4090", GLM, 4096, {"kernel": "prefill_w4a16_words"}, BY_REASON),
        ("RTX 4090", RAGGED, 4096, {}, SWEPT + RAGGED_K),
        ("RTX 4090", RAGGED, 4096, {"kernel": "prefill_w4a16_words"}, BY_REASON + RAGGED_K),
        ("RTX 4090", RAGGED, 4096, {"kernel": "prefill_w4a16_table"}, BY_REASON),  # which takes whole steps of any K
        ("RTX 4090", GLM, 4096, {"override": Tile(16)}, "none: as asked"),
        ("RTX 4090", GLM, 20, {}, "by reasoning: as an H200"),
        ("H200", GLM, 20, {}, "ours, H200: on nine shapes both take the same time at 1.4 to 1.9"),
        ("RTX 4090", GLM, 4096, {"kernel": "decode"}, "none: as asked"),
        ("RTX 4090", GLM, 0, {}, "none: nothing is chosen"),
        ("RTX 4090", GLM, 0, {"kernel": "decode"}, "none: nothing is chosen"),
        ("RTX 5090", GLM, 4096, {"input_scales": True}, AUTO_SOURCE),
        ("H200", GLM, 4096, {"input_scales": True, "kernel": "w4a4"}, AUTO_SOURCE),
    ],
)
def test_the_source_is_that_of_the_kernel(gpu, shape, tokens, options, source):
    gpu = gpus.named(gpu)
    lines = page(plan_layer(gpu, shape, tokens, **options), gpu, "x").splitlines()
    assert lines[4] == f"source  {source}"


def test_input_scales_and_the_release_reach_the_plan(capsys):
    command = ["plan", "--gpu", "GB10", "--shape", "glm-4.7", "--tokens", "4096", "--input-scales"]
    kernels = {}
    for triton in ("3.6.0", "3.8.0"):
        assert main([*command, "--triton", triton]) == 0
        kernels[triton] = capsys.readouterr().out.splitlines()[2].split()[1]
    assert kernels == {"3.6.0": "prefill_w4a16", "3.8.0": "prefill_w4a4_native"}


@pytest.mark.parametrize("shape", ["glm-4.7", "GLM-4.7", "Glm-4.7"])
def test_a_checkpoint_is_named_in_any_case(shape, capsys):
    assert main(["plan", "--gpu", "RTX 4090", "--shape", shape, "--tokens", "4096"]) == 0
    assert capsys.readouterr().out == PREFILL


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
