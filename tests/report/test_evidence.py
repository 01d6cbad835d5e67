"""The matrix: each place has what is known of it, and nothing is green that did not run there."""

from itertools import product

import pytest

from nvfp4_suite.ci.report import compiled, subjects, verdicts
from nvfp4_suite.ci.report.evidence import STATES
from nvfp4_suite.kernels import hopper, hopper_gemv
from nvfp4_suite.kernels.releases import TRITONS

from . import fleet, shown
from .fleet import H200, Result, failing

KERNEL = "prefill_w4a16"
PLACE = (KERNEL, "sm_90", "3.8.0")


def cells(root) -> dict:
    return shown.made(root).matrix.cells


def states(root) -> dict:
    """The state of each place that something is known of."""
    nothing = ("unknown", "not meant")
    return {place: cell.state for place, cell in cells(root).items() if cell.state not in nothing}


def passed(kernel: str = KERNEL) -> list[Result]:
    return [Result(fleet.named(kernel), kernel)]


def test_what_passed_on_a_gpu_ran_there_and_nowhere_else(tmp_path):
    fleet.write_session_of(tmp_path / "run", passed(), H200)
    assert states(tmp_path) == {PLACE: "ran"}


def test_the_interpreter_has_a_place_of_its_own(tmp_path):
    fleet.write_session_of(tmp_path / "run", passed())
    assert states(tmp_path) == {(KERNEL, "CPU", "3.8.0"): "emulated"}


def test_gates_speak_for_all_kernels_whose_launches_they_have(tmp_path):
    fleet.write_junit(tmp_path / "run" / "gates.xml", fleet.gate_results((9, 0)), "compile-gates")
    meant = {kernel for kernel in subjects.KERNELS if subjects.is_meant(kernel, "sm_90", "3.8.0")}
    assert states(tmp_path) == {(kernel, "sm_90", "3.8.0"): "compiled" for kernel in meant}
    assert "prefill_w4a4_native" not in meant and len(meant) == 8


@pytest.mark.parametrize("kernel", [*hopper.NAMES, hopper_gemv.NAME])
def test_a_kernel_for_sm_90_is_meant_there_alone(kernel):
    places = product((subjects.CPU, *subjects.CAPABILITIES), TRITONS)
    meant = [place for place in places if subjects.is_meant(kernel, *place)]
    assert set(meant) == {("sm_90", triton) for triton in hopper.TRITONS}


@pytest.mark.parametrize("missing", ["scale_words", "w4a16_pair_gemm", "w4a16_gemv"])
def test_a_kernel_of_which_a_part_was_not_compiled_is_unknown(tmp_path, missing):
    gated = [one for one in fleet.gate_results((9, 0)) if missing not in one.name]
    fleet.write_junit(tmp_path / "run" / "gates.xml", gated, "compile-gates")
    kernel = {"scale_words": "prefill_w4a16_words", "w4a16_pair_gemm": "prefill_w4a16_pair"}.get(
        missing, "decode_w4a16"
    )
    cell = cells(tmp_path)[kernel, "sm_90", "3.8.0"]
    assert cell.state == "unknown" and cell.why.startswith("compiled in ")
    assert cells(tmp_path)[PLACE].state == "compiled"


def test_a_red_gate_is_red_for_the_kernels_that_launch_it_although_they_ran(tmp_path):
    gated = fleet.gate_results((9, 0), red="gate_up-w4a16_gemm-bf16-fp8e4nv-m128")
    fleet.write_junit(tmp_path / "gates" / "gates.xml", gated, "compile-gates")
    fleet.write_session_of(tmp_path / "run", passed(), H200)
    found, report = cells(tmp_path), shown.made(tmp_path)
    assert found[PLACE].state == "failed" and found[PLACE].why == "1 gate of gemm.w4a16_gemm red"
    assert found[PLACE].anchor in [one.anchor for one in report.failures if one.kind == "gates"]
    assert found["prefill_w4a16_emulated", "sm_90", "3.8.0"].state == "compiled"  # its GEMM has bytes for scales


def test_a_failure_is_red_whatever_else_passed(tmp_path):
    fleet.write_session_of(tmp_path / "one", [*passed(), failing()], H200)
    fleet.write_session_of(tmp_path / "two", passed(), H200)
    cell = cells(tmp_path)[PLACE]
    assert (cell.state, cell.why, cell.anchor) == ("failed", "1 test failed", "f1")


def test_what_a_session_owed_is_untested_although_others_passed(tmp_path):
    owed = f"UNTESTED: {fleet.CASE} by {KERNEL}"
    fleet.write_session_of(tmp_path / "run", passed(), H200, problems=(owed,))
    cell = cells(tmp_path)[PLACE]
    assert (cell.state, cell.anchor) == ("untested", "f1")


@pytest.mark.parametrize(("whole", "state"), [(True, "untested"), (False, "ran in part")])
def test_a_skip_is_owed_unless_the_tests_were_chosen_by_hand(tmp_path, whole, state):
    fleet.write_session_of(tmp_path / "run", [*passed(), Result("test_x", KERNEL, skip="no tool")], H200, whole=whole)
    assert states(tmp_path) == {PLACE: state}


def test_shards_are_whole_together(tmp_path):
    for group in (1, 2):
        run = tmp_path / f"h200-3.8.0-{group}of2" / "GPU"
        fleet.write_session_of(run, passed(), H200)
        fleet.write_json(run / "manifest.json", {"shard": [group, 2]})
        assert states(tmp_path) == {PLACE: ("ran in part", "ran")[group - 1]}
    fleet.write_session(run, "gpu", whole=False)
    assert states(tmp_path) == {PLACE: "ran in part"}
    fleet.write_session(run, "gpu")
    fleet.write_environment(run, H200, triton="3.9.0")
    assert states(tmp_path) == {PLACE: "ran in part", (KERNEL, "sm_90", "3.9.0"): "ran in part"}


def test_a_crash_counts_for_the_kernel_that_its_test_is_named_for(tmp_path):
    crash = Result(fleet.named("prefill_w4a16_pair"), None, "worker 'gw1' crashed")
    fleet.write_session_of(tmp_path / "run", [crash], H200)
    assert states(tmp_path) == {("prefill_w4a16_pair", "sm_90", "3.8.0"): "failed"}


def test_a_strangers_kernel_and_release_have_rows_of_their_own(tmp_path):
    fleet.write_environment(tmp_path / "run", ("A card", (13, 0)), triton="4.0.0")
    fleet.write_session(tmp_path / "run", "gpu")
    fleet.write_junit(tmp_path / "run" / "junit.xml", passed("marlin"))
    assert states(tmp_path) == {("marlin", "sm_130", "4.0.0"): "ran"}
    matrix = shown.made(tmp_path).matrix
    assert matrix.tritons[-1] == "4.0.0" and matrix.architectures[-1] == "sm_130" and matrix.kernels[-1] == "marlin"


def test_what_is_not_made_for_a_place_is_no_gap(tmp_path):
    fleet.write_session_of(tmp_path / "run", passed(), H200)
    found = cells(tmp_path)
    assert found["prefill_w4a4_native", "sm_90", "3.8.0"].state == "not meant"
    assert found["prefill_w4a4_native", "sm_120", "3.8.0"].state == "unknown"
    assert found["prefill_w4a4_atomic", "CPU", "3.8.0"].state == "not meant"
    assert found[KERNEL, "sm_110", "3.6.0"].state == "not meant"


# Everything that a run may say of one kernel, crossed: (engine, GPUs, outcome, whole and tier).
ENGINES, OUTCOMES = ("gpu", "interpreter", "compile", "peers", "", None), ("passed", "failed", "skipped", "none")
WHOLE, PARTS = (True, "all"), ((False, "all"), (True, "smoke"))
SAID = list(product(ENGINES, ((), (H200,)), OUTCOMES, (WHOLE, *PARTS)))


def write_what_is_said(folder, engine, gpus, outcome, whole_and_tier) -> None:
    fleet.write_environment(folder, *gpus)
    if engine is not None:
        fleet.write_session(folder, engine, whole=whole_and_tier[0], tier=whole_and_tier[1])
    results = {"passed": passed(), "failed": [failing()], "skipped": [Result("x", KERNEL, skip="no")], "none": []}
    fleet.write_junit(folder / "junit.xml", results[outcome])


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "alone"])
def test_nothing_is_green_that_did_not_run_there(tmp_path, gated):
    """Neither in the matrix nor in a run's line, whatever the engine, the outcome and the gates say."""
    for place, said in enumerate(said for said in SAID if not gated or said[-1] == WHOLE):
        root = tmp_path / str(place)
        write_what_is_said(root / "run", *said)
        if gated:
            fleet.write_junit(root / "gates" / "gates.xml", GATED, "compile-gates")
        engine, gpus, outcome, whole = said
        on_gpu = outcome == "passed" and bool(gpus) and engine in ("gpu", None)
        whole = engine is not None and whole == WHOLE
        report = shown.made(root)
        green = {where for where, cell in report.matrix.cells.items() if cell.state == "ran"}
        assert green == ({PLACE} if on_gpu and whole else set()), said
        part = {where for where, cell in report.matrix.cells.items() if cell.state == "ran in part"}
        assert part == ({PLACE} if on_gpu and not whole else set()), said
        assert any(one.green for one in report.verdicts) == (on_gpu and whole), said


GATED = fleet.gate_results((9, 0))


def test_every_state_has_a_sign_and_a_meaning():
    from nvfp4_suite.ci.report.evidence import MEANING

    assert STATES.keys() == MEANING.keys() and len(set(STATES.values())) == len(STATES)


def test_what_compilers_made_is_told_by_architecture(tmp_path):
    gated = fleet.gate_results((9, 0), (12, 0), red="w4a4_down_specialized")
    gated[0].properties["facts"] = "target=sm_90a shared=200000 registers=255"
    gated[1].properties["facts"] = "nonsense registers=many ="
    fleet.write_junit(tmp_path / "run" / "gates.xml", gated, "compile-gates")
    (run,) = shown.made(tmp_path).verdicts
    hopper, blackwell = compiled.lines([run])
    assert (hopper.arch, hopper.triton, hopper.instructions, hopper.failed) == ("sm_90", "3.8.0", ("wgmma",), 0)
    assert (hopper.registers, hopper.shared_bytes, hopper.limit) == (255, 200000, 232_448)
    assert (blackwell.arch, blackwell.failed, blackwell.limit) == ("sm_120", 3, 101_376)
    assert run == verdicts.of(run.run)
