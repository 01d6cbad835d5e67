"""What a bisect follows through a history: a case by a kernel, or the machine code of a launch."""

from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from ..contract.case import Case
from ..contract.gpus import PORTABLE, Gpu
from ..kernels.launch import Launch
from . import bundle, codegen, gates
from .bisect_found import DIFFERS, Failure, Found
from .bisect_step import OUTPUT, launch_fields
from .bisect_trial import Answer, Point, Trials
from .gate_facts import Capability, Facts
from .golden_file import Refused

PORTABLE_CAPABILITY = (8, 0)  # the portable plan, which the interpreter runs, is gated whole where e4m3 is emulated


class CaseSubject:
    """The output of `kernel` on `case`: the judges say whether it is right, a digest whether it is the same.

    `gpu` is the one at hand, None for the interpreter.
    """

    def __init__(self, trials: Trials, work: Path, case: Case, kernel: str | None, gpu: Gpu | None):
        self.trials, self.case, self.kernel, self.gpu = trials, case, kernel, gpu
        self.engine = "gpu" if gpu else "interpreter"
        self.truth = Truth(case)
        given = bundle.Bundle("bisect", case, kernel, "", {}, self.truth.inputs)
        self.bundle = bundle.write(work, given, {})

    def __str__(self) -> str:
        return f"case {self.case.id}, kernel {self.kernel or '?'}, {self.gpu.name if self.gpu else 'interpreter'}"

    @property
    def repeat(self) -> str:
        """The command that runs it in today's tree."""
        return f"nox -s {'gpu-tests' if self.gpu else 'tests'} -- --case {self.case.id}"

    def kernels(self, point: Point) -> list[str]:
        """The kernels of `point` that take the case. Raises Refused where there are none."""
        answer = self._ask(point, "list_kernels")
        if not answer.values.get("kernels"):
            why = found_of(answer) or "none takes the case on this engine"
            raise Refused(f"no kernel of {point.name} can be chosen, name one with --kernel: {why}")
        return answer.values["kernels"]

    def found(self, point: Point) -> Found:
        answer = self._ask(point, "run_case", kernel=self.kernel)
        return found_of(answer) or self.truth.judged(answer, self.kernel)

    def planned(self, point: Point) -> dict:
        """What the plan is made of, for the steps that make it again."""
        names = ("dtype", "activation", "weight_on_input")
        options = {name: getattr(self.case, name) for name in names}
        options |= {"input_scales": self.case.format == "w4a4", "kernel": self.kernel}
        options["triton"] = self.trials.release(point)
        return {
            "gpu": asdict(self.gpu or PORTABLE),
            "shape": asdict(self.case.shape),
            "tokens": self.case.tokens,
            "options": options,
        }

    @property
    def capability(self) -> Capability:
        """What machine code is compared on."""
        return self.gpu.capability if self.gpu else PORTABLE_CAPABILITY

    def _ask(self, point: Point, task: str, **request) -> Answer:
        request |= {"bundle": str(self.bundle), "capability": self.gpu and self.gpu.capability}
        return self.trials.ask(point, task, engine=self.engine, **request)


class LaunchSubject:
    """The machine code of the launch `id` for `capability`: whether its gate holds, and its digest.

    Where the gates do not list it for the kernels of a point, it is compiled as they list it for today's.
    """

    def __init__(self, trials: Trials, id: str, capability: Capability):
        self.trials, self.id, self.capability = trials, id, capability
        listed = {gates.launch_id(*one): one[1] for one in gates.launches(capabilities=(capability,))}
        self.today = asdict(listed[id]) if id in listed else None

    def __str__(self) -> str:
        return f"launch {self.id}"

    @property
    def repeat(self) -> str:
        arch = "".join(map(str, self.capability))
        return f"nox -s compile-gates -- --launch {self.id.partition('-')[2]} --arch {arch}"

    def found(self, point: Point) -> Found:
        answer = self.trials.ask(point, "compile_launch", id=self.id, capability=self.capability, launch=self.today)
        return found_of(answer) or replace(self._judged(answer.values), seconds=answer.seconds)

    def _judged(self, values: dict) -> Found:
        """What today's gate says of the launch."""
        launch = Launch(**launch_fields(values["launch"]))
        if "error" in values:
            return Found(failure=_red(values["error"], launch))
        facts, failure = Facts.from_json(values["facts"]), None
        try:
            gates.check(facts, launch, self.capability)
        except gates.GateError as error:
            failure = _red(str(error), launch)
        return Found(facts.sass, failure, detail=codegen.described(facts))


def _red(text: str, launch: Launch) -> Failure:
    """A gate's failure, the launch named by its stage, as the rest of its label is no part of what is wrong."""
    return Failure("gate", "", text.replace(launch.label, launch.stage))


def found_of(answer: Answer) -> Found | None:
    """What is found where a step did not run through; None where it did."""
    if answer.died:
        return Found(failure=answer.died, seconds=answer.seconds)
    if "unusable" in answer.values:
        return Found(unusable=answer.values["unusable"], seconds=answer.seconds)
    if "failure" in answer.values:
        return Found(failure=Failure(**answer.values["failure"]), seconds=answer.seconds)
    return None


class Truth:
    """The right answers of a case by today's reference, one for each rounding form that a kernel may promise."""

    def __init__(self, case: Case):
        self.case, self.inputs = case, bundle.inputs_of(case)
        self.tensors = self.inputs.hidden_states, self.inputs.banks, self.inputs.topk_weights, self.inputs.topk_ids
        self.bits, self.enclosure = cache(self._bits), cache(self._enclosure)

    def judged(self, answer: Answer, kernel: str) -> Found:
        """The output's digest, and what its judge says of it, by the rounding form that its kernel promises."""
        from safetensors.torch import load_file

        from .recording import digest

        output = load_file(answer.folder / OUTPUT)["output"]
        failure = unusable = None
        try:
            self._judge(output, answer.values, kernel)
        except AssertionError as error:
            failure = Failure(DIFFERS, "", str(error))
        except ValueError as error:  # a form that today's reference does not have
            unusable = str(error)
        return Found(digest(output), failure, unusable, seconds=answer.seconds)

    def _judge(self, output, promised: dict, kernel: str) -> None:
        from ..reference import judge

        context = judge.context_of(self.case) | {"kernel": kernel}
        if self.case.inputs == "orderfree":
            judge.bitwise(output, self.bits(promised["orderfree_rounding"]), **context)
        else:
            judge.bounded(output, self.enclosure(promised["rounding"]), **context)

    def _bits(self, rounding: str):
        from .recording import reference_output

        return reference_output(self.inputs, self.case, rounding)

    def _enclosure(self, rounding: str):
        from ..reference import bounds

        return bounds.enclose(*self.tensors, rounding=rounding, **self.case.options)
