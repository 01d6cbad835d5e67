"""When importing ci/interpreter.py repairs, when it refuses, and whether Triton still needs each part of it."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton
from triton.runtime import interpreter

from . import test_interpreter as operations
from . import test_interpreter_casts as casts
from .rounding import BF16, E4M3, FP16

ROOT = Path(__file__).resolve().parents[2]

# Tests of what the repair is for: each is red without it, in every Triton that the repair knows.
NEEDED = [
    (casts.test_fp32_is_rounded_to_nearest_even, BF16),
    (casts.test_fp32_is_rounded_to_nearest_even, E4M3),
    (casts.test_fp32_is_rounded_toward_zero_on_request, BF16),
    (casts.test_fp32_is_rounded_toward_zero_on_request, FP16),
    *((casts.test_every_code_of_a_short_format_is_cast_to_the_others, *pair) for pair in casts.PAIRS[1:]),
    (casts.test_every_bf16_is_the_upper_half_of_its_fp32,),
    (casts.test_every_code_is_read_as_fp32, E4M3),
    (casts.test_every_e4m3_byte_survives_the_way_through_fp32,),
    (operations.test_a_dot_of_integers_is_exact, BF16, 255, 16, 16, 64),
    (operations.test_a_constant_is_rounded_to_its_type, BF16, 1 + 3 * 2**-8),
    (operations.test_bf16_arithmetic_rounds_the_fp32_result,),
    (operations.test_overflow_and_nan_do_not_warn,),
]


def green_without_the_repair() -> list[str]:
    """Which tests of `NEEDED` pass. To be called where ci/interpreter.py has not been imported."""
    green = []
    for test, *arguments in NEEDED:
        try:
            test(*arguments, "cpu")
            green.append(f"{test.__name__}{arguments}")
        except Exception:
            continue
    return green


def child(code, **environment):
    """The finished process of `python -c code`, with TRITON_INTERPRET only as given."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=inherited | environment, capture_output=True, text=True
    )


def test_triton_still_needs_every_part_of_the_repair():
    code = "from tests.ci.test_interpreter_import import green_without_the_repair as green; print(green())"
    found = child(code, TRITON_INTERPRET="1")
    assert found.stdout == "[]\n", f"Triton {triton.__version__} passes these unrepaired: {found.stdout}{found.stderr}"


def test_importing_twice_repairs_once():
    import nvfp4_suite.ci.interpreter as repair

    before = interpreter._get_np_dtype, interpreter._convert_float, interpreter.GridExecutor.__call__
    importlib.reload(repair)
    assert before == (interpreter._get_np_dtype, interpreter._convert_float, interpreter.GridExecutor.__call__)


def test_the_repair_does_not_import_torch():
    found = child("import sys, nvfp4_suite.ci.interpreter; print('torch' in sys.modules)", TRITON_INTERPRET="1")
    assert found.stdout == "False\n", found.stderr


@pytest.mark.parametrize(
    "before",
    [
        "",
        "import os, triton; os.environ['TRITON_INTERPRET'] = '1'",
        "import os; os.environ['TRITON_INTERPRET'] = '1'; import triton; del os.environ['TRITON_INTERPRET']",
    ],
    ids=["never set", "set too late", "taken away"],
)
def test_the_repair_refuses_where_kernels_are_compiled(before):
    found = child(f"{before}\nimport nvfp4_suite.ci.interpreter")
    assert "RuntimeError: TRITON_INTERPRET must be 1 before triton is first imported" in found.stderr


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("del interpreter._convert_float", "_convert_float"),
        ("interpreter._get_np_dtype = lambda dtype: None", "_get_np_dtype"),
        ("del interpreter._interpreter.load", "_interpreter.load"),
        ("del interpreter.GridExecutor.__call__", "GridExecutor.__call__"),
    ],
    ids=["a function is gone", "a function changed", "a function in C++ is gone", "a method is gone"],
)
def test_the_repair_refuses_a_triton_that_it_does_not_know(change, name):
    code = f"from triton.runtime import interpreter; {change}; import nvfp4_suite.ci.interpreter"
    found = child(code, TRITON_INTERPRET="1")
    assert f"RuntimeError: cannot repair the interpreter of Triton {triton.__version__}, only" in found.stderr
    assert f": {name} should take" in found.stderr
