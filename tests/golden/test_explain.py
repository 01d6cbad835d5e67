"""What `golden explain` says of a key."""

from dataclasses import replace

import pytest

from nvfp4_suite.ci import exact, golden, golden_explain
from nvfp4_suite.ci.outcomes import Recording
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import hopper, hopper_gemv

from .processes import CPU
from .tool import CASES, DIGESTS, FULL, KERNELS, KEYS, PLAN, REAL


@pytest.fixture
def explain(file, engine, capsys):
    """The lines about a key, after a recording of each kind, in which a digest of each kind has changed."""
    engine(DIGESTS | {KEYS[0]: "b" * 64}, real="f" * 64, plan=PLAN.replace("=16", "=32"))
    golden.main(["record", "--engine", "gpu"])
    engine(DIGESTS)
    golden.main(["record", "--engine", "gpu", "--reason", "one rounding less"])
    golden.main(["record", "--engine", "reference"])

    def lines(key: str) -> list[str]:
        capsys.readouterr()
        assert golden.main(["explain", key]) == 0
        return capsys.readouterr().out.splitlines()

    return lines


def told(lines: list[str], what: str) -> list[str]:
    return [line.removeprefix(f"  {what}").strip() for line in lines if line.startswith(f"  {what} ")]


def test_an_order_free_key(explain):
    lines = explain(KEYS[0])
    assert lines[0] == KEYS[0]
    assert told(lines, "case") == [golden_explain.in_words(CASES[0])]
    assert told(lines, "digest") == [DIGESTS[KEYS[0]]]
    assert told(lines, "confirmed") == [
        "by reference (device x86_64, python 3.11.7, torch 2.13.0)",
        "by sm_90 triton 3.8.0 (assembler ptxas 12.9, device NVIDIA H200, driver 580, python 3.12.3, "
        "torch 2.11.0+cu130, triton 3.8.0)",
    ]
    assert told(lines, "owed") == ["by interpreter"]
    assert told(lines, "change") == [f"{'b' * 12} -> {DIGESTS[KEYS[0]][:12]} in {'c' * 12}: one rounding less"]
    plans = told(lines, "plan")
    assert len(plans) == len({*KERNELS, *hopper.NAMES, hopper_gemv.NAME})
    assert plans[0].startswith("sm_90 triton 3.8.0: kernel=prefill_w4a16 launches=8 ")
    assert "instruction=wgmma" in plans[0]


def test_another_rounding_form_of_the_case_is_near(explain, file):
    form = f"{CASES[0].id}/w4a4"
    exact.write(
        file, exact.merge(Recording("reference", CPU, "", {form: "d" * 64}), exact.read(file), reason=None, commit="")
    )
    assert told(explain(KEYS[0]), "nearest") == [f"{form}: {'d' * 64}"]


def test_a_real_valued_key(explain):
    lines = explain(FULL)
    assert lines[0] == FULL
    assert told(lines, "case") == [golden_explain.in_words(REAL[0])]
    assert told(lines, "kernel") == [KERNELS[0]] and told(lines, "plan") == [PLAN]
    assert told(lines, "card") == ["sm_90, data center, with Triton 3.8.0"]
    assert told(lines, "digest") == ["e" * 64]
    assert told(lines, "change") == [
        f"{'f' * 12} -> {'e' * 12} in {'c' * 12}: one rounding less; BLOCK_M 32 -> 16",
    ]
    assert "BLOCK_N none -> 64" in told(lines, "today")[0]  # the plan that was made up has none
    assert told(lines, "nearest")[0].endswith("the same digest; nothing else differs")


def test_the_beginning_of_one_key_is_enough_and_of_several_lists_them(explain):
    assert explain(FULL.removesuffix(".0"))[0] == FULL
    lines = explain(REAL[0].id)
    assert len(lines) == len(KERNELS) and lines[0].startswith(f"{'e' * 12} {REAL[0].id}/")


def test_a_key_that_is_owed_but_not_recorded_is_known(file, engine, capsys):
    engine(DIGESTS)
    golden.main(["record", "--engine", "reference", "--case", CASES[0].id])
    capsys.readouterr()
    assert golden.main(["explain", KEYS[1]]) == 0
    assert "  digest     not recorded\n" in capsys.readouterr().out


def test_what_is_no_key_is_refused_and_the_nearest_are_named(explain, capsys):
    assert golden.main(["explain", KEYS[0] + "x"]) == 1
    err = capsys.readouterr().err
    assert f"KEY is '{KEYS[0]}x', but should be, or begin, one of golden/'s\n  {KEYS[0]}\n" in err


def test_a_case_in_words():
    case = Case(LayerShape(4, 3, 48, 80), 5, "twice", atomics=True)
    assert golden_explain.in_words(case) == (
        "5 tokens through 4 experts, 3 a token, hidden 48, intermediate 80; twice routing (each token names one expert "
        "twice); inputs sums exact in any order, also where each addition rounds; silu on bf16, weights in NVFP4"
    )
    other = replace(
        case, atomics=False, format="w4a4", activation="swigluoai", activation_limit=1.0, weight_on_input=True
    )
    assert golden_explain.in_words(other).endswith(
        "; swigluoai on bf16, activations and weights in NVFP4; alpha 1.702, limit 1.0; routing weights on the input"
    )


def test_a_gpu_by_the_name_of_its_architecture():
    assert golden_explain.gpu_of("X", "sm_90") == Gpu("X", (9, 0))
    assert golden_explain.gpu_of("X", "sm_121") == Gpu("X", (12, 1))
