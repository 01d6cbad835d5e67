"""What each engine owes a digest of: by its kernels' promises, by how long the interpreter takes, and by name."""

from dataclasses import replace

import pytest

from nvfp4_suite.cases.layers import ATOMICS, LONG, ORDERFREE, RANDOM
from nvfp4_suite.ci import golden_due
from nvfp4_suite.ci.golden_due import Task
from nvfp4_suite.ci.program_steps import plan_of, program_steps
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.kernel import FORMATS, Promise
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts, launch, registry, w4a4_layer
from nvfp4_suite.kernels.registry import KERNELS, PlannedKernel
from nvfp4_suite.reference.draws import layer

SMALL = Case(LayerShape(2, 1, 16, 16), 3)


def fake_kernels(monkeypatch, **promises: Promise) -> None:
    kernels = {name: PlannedKernel(name, promise) for name, promise in promises.items()}
    monkeypatch.setattr(registry, "KERNELS", kernels)


def names_for(engine: str, case: Case) -> list[str]:
    return [kernel.name for kernel in golden_due.kernels_for(engine, case)]


def test_the_reference_owes_every_case_in_every_promised_form(monkeypatch):
    fake_kernels(monkeypatch, a=Promise(), b=Promise(), c=Promise(rounding="other"))
    big = replace(SMALL, tier="all")
    expected = [(c, form) for c in (SMALL, big) for form in ("other", "w4a16")]
    assert golden_due.due("reference", (SMALL, big)) == expected
    assert golden_due.tasks("reference", (SMALL,)) == [Task(SMALL, "other"), Task(SMALL, "w4a16")]


def test_a_case_that_no_kernel_takes_is_owed_by_the_reference_alone(monkeypatch):
    fake_kernels(monkeypatch, a=Promise())
    quantized = replace(SMALL, format="w4a4")
    assert golden_due.due("reference", (SMALL, quantized)) == [(SMALL, "w4a16"), (quantized, "w4a4")]
    for engine in ("interpreter", "sm_90"):
        assert golden_due.due(engine, (SMALL, quantized)) == [(SMALL, "w4a16")]


@pytest.mark.parametrize("name", FORMATS)
def test_a_kernel_of_a_format_is_held_to_the_cases_of_that_format(monkeypatch, name):
    fake_kernels(monkeypatch, a=Promise(formats=(name,), rounding=name))
    cases = tuple(replace(SMALL, format=one) for one in FORMATS)
    assert golden_due.due("sm_90", cases) == [(replace(SMALL, format=name), name)]
    assert golden_due.due("reference", cases) == [(case, case.format) for case in cases]


def test_a_kernel_that_adds_by_atomics_shares_the_digest_of_the_cases_whose_sums_are_exact(monkeypatch):
    fake_kernels(monkeypatch, a=Promise(), b=Promise(rounding="w4a16_atomic"))
    three = Case(LayerShape(4, 3, 48, 80), 5)
    exact = replace(three, atomics=True)
    assert golden_due.due("reference", (three, exact)) == [(three, "w4a16"), (exact, "w4a16")]
    assert (names_for("sm_90", three), names_for("sm_90", exact)) == (["a"], ["a", "b"])


@pytest.mark.parametrize(
    ("promise", "engines"),
    [
        (Promise(), {"interpreter", "sm_90", "sm_100"}),
        (Promise(capabilities=((9, 0),)), {"interpreter", "sm_90"}),
        (Promise(interpreted=False), {"sm_90", "sm_100"}),
        (Promise(dtypes=("fp16",)), set()),
        (Promise(activations=("gelu",)), set()),
    ],
)
def test_a_kernel_owes_what_it_promises(monkeypatch, promise, engines):
    fake_kernels(monkeypatch, a=promise)
    every = ("interpreter", "sm_90", "sm_100")
    assert {engine for engine in every if golden_due.due(engine, (SMALL,))} == engines


def test_real_valued_cases_are_owed_by_gpus_and_by_kernels_that_repeat_themselves(monkeypatch):
    loose = Promise(repeatable=False, rounding="w4a16_atomic")
    fake_kernels(monkeypatch, a=Promise(), b=loose, c=Promise(capabilities=((10, 0),)))
    case = replace(SMALL, inputs="random")
    assert golden_due.tasks("sm_90", (case,)) == [Task(case, "w4a16", "a")]
    assert [task.kernel for task in golden_due.tasks("sm_100", (case,))] == ["a", "c"]
    assert golden_due.tasks("interpreter", (case,)) == golden_due.tasks("reference", (case,)) == []
    assert golden_due.due("sm_90", (case,)) == []


def test_every_table_and_every_kernel_has_something_to_record():
    tasks = golden_due.tasks("sm_90", RANDOM + LONG)
    assert {task.case for task in tasks} == set(RANDOM + LONG)
    loose = {name for name, kernel in KERNELS.items() if not kernel.promise.repeatable}
    native = {name for name, one in KERNELS.items() if (9, 0) not in (one.promise.capabilities or [(9, 0)])}
    assert "prefill_w4a4_atomic" in loose
    assert {task.kernel for task in tasks} == set(KERNELS) - loose - native


def test_what_takes_the_interpreter_too_long_is_listed_by_name():
    """The lists are what the rule leaves out: a case that joins them is named, and one that no longer should goes."""
    found: dict[str, tuple[str, ...]] = {}
    for case in ORDERFREE:
        plans = {one.name: plan_of(one.name, case) for one in KERNELS.values() if takes_interpreted(one, case)}
        long = tuple(name for name, plan in plans.items() if program_steps(plan) >= golden_due.MOST_STEPS)
        left = tuple(name for name in plans if name not in names_for("interpreter", case))
        assert long == left
        if long:
            found[case.id] = long
    assert found == golden_due.LEFT_TO_GPUS


def takes_interpreted(kernel: PlannedKernel, case: Case) -> bool:
    return kernel.promise.takes(case) and kernel.promise.interpreted


def test_a_gpu_leaves_out_what_is_named_alone(monkeypatch):
    owed = {case.id for case, _ in golden_due.due("sm_90", ORDERFREE)}
    assert {case.id for case in ORDERFREE} - owed == set(golden_due.GIANTS)
    monkeypatch.setattr(golden_due, "GIANTS", (ORDERFREE[0].id,))
    assert golden_due.tasks("sm_90", ORDERFREE[:1]) == []


STEPS = (
    (Case(LayerShape(4, 2, 272, 80), 4), "prefill_w4a16"),
    (Case(LayerShape(4, 2, 80, 272), 4, dtype="fp16"), "prefill_w4a16_words"),
    (Case(LayerShape(1, 1, 48, 16), 129), "prefill_w4a16_pair"),
    (Case(LayerShape(4, 2, 48, 80), 1), "decode_w4a16"),
    (ATOMICS[6], "prefill_w4a4"),
)


@pytest.mark.parametrize(("case", "kernel"), STEPS, ids=[f"{case.id}-{name}" for case, name in STEPS])
def test_programs_are_counted_as_they_are_started(monkeypatch, case, kernel):
    """Their grids come from experts.run, times the steps that a loop over K takes."""
    grids = {}
    for module in (experts, w4a4_layer):
        monkeypatch.setattr(module, "start", lambda launch, grid, **_: grids.update({launch.stage: (launch, grid)}))
    monkeypatch.setattr(w4a4_layer, "INTERPRETED_PROGRAMS", 10**6)  # a persistent launch has a program for each tile
    w4a4_layer.resident_programs.cache_clear()
    inputs = layer.draw(case)
    KERNELS[kernel].run(
        KERNELS[kernel].prepare(inputs.banks), inputs.hidden_states, inputs.topk_weights, inputs.topk_ids
    )
    w4a4_layer.resident_programs.cache_clear()
    total = 0
    for stage, k in (("gate_up", case.shape.hidden), ("down", case.shape.intermediate)):
        launched, (programs,) = grids[stage]
        total += programs * len(range(0, k, step_of(launched)))
    assert program_steps(plan_of(kernel, case)) == total


def step_of(launched: launch.Launch) -> int:
    """Elements of K: decode's words have eight codes, a byte two."""
    return 8 * launched.constexpr("WORDS") if "gemv" in launched.kernel else 2 * launched.constexpr("BLOCK_KB")


def test_a_kernel_that_is_not_planned_here_is_owed(monkeypatch):
    assert plan_of("someone_elses", SMALL) is None
    fake_kernels(monkeypatch, someone_elses=Promise())
    assert names_for("interpreter", SMALL) == ["someone_elses"]


def test_every_order_free_case_has_its_own_key():
    assert len(golden_due.known_exact()) == len(golden_due.due("reference", ORDERFREE)) >= 80
