"""What a name on the command line is, and kernels/ of two trees in one process."""

import shutil

import pytest

from nvfp4_suite.bench import revisions, subjects
from nvfp4_suite.bench.points import LAYERS
from nvfp4_suite.bench.subjects import choose, parse
from nvfp4_suite.ci.golden_file import Refused
from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.kernel import Promise
from nvfp4_suite.kernels import plan, registry

from ..meta.tree import ROOT
from ..workflows.test_bisect_request import commit, git
from . import quick

H200 = Gpu("NVIDIA H200", (9, 0))
GLM = LAYERS["GLM-4.7"]


def test_names_are_those_of_plans_and_of_the_registry():
    for name in ("auto", "prefill", "decode", "w4a4", *registry.KERNELS):
        assert parse(name).label == name


def test_a_tile_is_read_and_written():
    subject = parse("prefill@m64,n32,kb64,w8,s2")
    assert subject.label == "prefill@m64,n32,kb64,w8,s2"
    chosen = choose(subject, H200, GLM, 4096, "3.8.0")
    launch = chosen.plan.launch("gate_up")
    sizes = [launch.constexpr(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_KB")]
    assert [*sizes, launch.num_warps, launch.num_stages] == [64, 32, 64, 8, 2]
    assert parse("prefill@m64").label == "prefill@m64,n64,kb32,w4,s3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("marlin", "the kernel is 'marlin', but should be one of auto, prefill"),
        ("prefill@64", "the tile is '64', but should read m64,n64,kb32,w4,s3"),
        ("prefill@n64", "only m must be there"),
        ("prefill@m64,x3", "the tile is 'm64,x3'"),
    ],
)
def test_what_names_no_kernel(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prefill@m48", "override's block_m is 48, but should be a power of two"),
        ("prefill@m256,n256,kb128,s4", "of shared memory, but NVIDIA H200 has"),
        ("decode@m16", r"override is .*, but should be None for decode"),
        ("prefill_w4a4_native", "prefill_w4a4_native does not run on NVIDIA H200"),
    ],
)
def test_what_cannot_run_there(text, message):
    with pytest.raises(ValueError, match=message):
        choose(parse(text), H200, GLM, 4096, "3.8.0")


def test_a_kernel_of_the_registry_alone_has_no_plan(register):
    register(quick.kernel("theirs"), quick.kernel("gelu_only", activations=("gelu",)))
    chosen = choose(parse("theirs"), H200, GLM, 64, "3.8.0")
    assert chosen.plan is None and chosen.kernel.name == "theirs" and chosen.operand == "bf16"
    with pytest.raises(ValueError, match="theirs has no plan, so that it takes no tile"):
        choose(parse("theirs@m64"), H200, GLM, 64, "3.8.0")
    with pytest.raises(ValueError, match="gelu_only does not take silu"):
        choose(parse("gelu_only"), H200, GLM, 64, "3.8.0")


def test_auto_is_what_dispatch_chooses_there():
    found = {tokens: choose(parse("auto"), H200, GLM, tokens, "3.8.0") for tokens in (1, 4096)}
    assert {tokens: one.kernel.name for tokens, one in found.items()} == {
        1: "decode_w4a16_hopper",
        4096: "prefill_w4a16_hopper",
    }
    for tokens, one in found.items():
        assert one.plan == plan.plan_layer(H200, GLM.shape, tokens) and not one.w4a4


def test_w4a4_multiplies_fp4_only_where_the_card_does():
    here, native = (choose(parse("w4a4"), gpu, GLM, 8192, "3.8.0") for gpu in (H200, RTX_5090))
    assert (here.w4a4, here.operand, native.w4a4, native.operand) == (True, "bf16", True, "fp4")


RTX_5090 = Gpu("NVIDIA GeForce RTX 5090", (12, 0))


@pytest.fixture
def other(tmp_path):
    """A copy of kernels/ in which one name and the smallest block are others."""
    folder = tmp_path / "old" / "kernels"
    shutil.copytree(ROOT / "kernels", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in (
        ("variants.py", '"prefill_w4a16_words"', '"prefill_w4a16_old"'),
        ("tuning.py", "(0, 16))", "(0, 32))"),
    ):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
    return folder


def test_other_kernels_live_beside_todays(other):
    kernels = revisions.from_folder(other.parent, "old")
    assert revisions.from_folder(other).package != kernels.package
    assert "prefill_w4a16_old" in kernels.registry.KERNELS and "prefill_w4a16_old" not in registry.KERNELS
    mine, theirs = parse("prefill"), parse("prefill", kernels)
    assert (mine.label, theirs.label) == ("prefill", "prefill at old")
    blocks = [choose(one, H200, GLM, 1, "3.8.0").plan.launch("gate_up").constexpr("BLOCK_M") for one in (mine, theirs)]
    assert blocks == [16, 32]
    assert kernels.experts.ExpertBanks is ExpertBanks  # one contract, so that both take the same banks
    assert kernels.registry.Promise is Promise
    with pytest.raises(AttributeError, match="old has no module nothing"):
        kernels.nothing  # noqa: B018
    with pytest.raises(ValueError, match="one of auto"):
        parse("prefill_w4a16_words", kernels)


def test_a_folder_without_kernels(tmp_path):
    with pytest.raises(ValueError, match=r"--against-folder is .*, but should be a kernels/"):
        revisions.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("registry.py", "import Kernel, Promise", "import Kernel, Promise, Gone"),
        ("plan.py", "def plan_layer", "def plan_it"),
    ],
)
def test_kernels_that_today_cannot_reach(other, file, old, new):
    text = (other / file).read_text()
    assert old in text
    (other / file).write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=r"the kernels at .* are none that can be timed beside today's"):
        revisions.from_folder(other)


def test_the_kernels_of_a_revision(other, tmp_path):
    git(other.parent, "init", "--quiet")
    git(other.parent, "add", ".")
    commit(other.parent, "old")
    shutil.rmtree(other)
    kernels = revisions.from_revision("HEAD", other.parent, tmp_path / "work")
    assert "prefill_w4a16_old" in kernels.registry.KERNELS
    assert parse("auto", kernels).label.startswith("auto at ")
    with pytest.raises(Refused, match="--against-revision is 'v9', but should be a revision"):
        revisions.from_revision("v9", other.parent, tmp_path / "none")


def test_with_tile_of_is_what_is_parsed():
    chosen = subjects.with_tile_of(parse("prefill"), plan.Tile(64, num_warps=8))
    assert chosen == parse("prefill@m64,w8")
