"""An assembler that is older than the card: a toolchain's fault where the table says so, and never without its name."""

from dataclasses import replace

import pytest

from nvfp4_suite.ci import compile_gates, gate_report, gate_run, gates
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer

THOR, B200 = (11, 0), (10, 0)
LAUNCH = plan_layer(Gpu("", THOR), LayerShape(256, 8, 2048, 512), 1).launch("sum_routes")

# What Triton 3.6.0 has for these cards.
OLD = """#!/bin/sh
case "$*" in *sm_110a*) echo "ptxas fatal   : Value 'sm_110a' is not defined for option 'gpu-name'" >&2; exit 255; esac
exec {ptxas} "$@"
"""


def judged(triton: str) -> list[gate_report.Judged]:
    """Thor's gate and the B200's, with the assembler of this process, as if under `triton`."""
    outcomes = gate_run.run([(THOR, LAUNCH), (B200, LAUNCH)], gate_run.Settings(1))
    return [compile_gates.judge(replace(each, launch=LAUNCH), triton) for each in outcomes]


@pytest.mark.fault("triton-lang/triton#10462")
def test_an_assembler_older_than_the_card_is_known_where_the_table_has_it(monkeypatch, tmp_path):
    from triton import knobs

    (tmp_path / "ptxas").write_text(OLD.format(ptxas=knobs.nvidia.ptxas_blackwell.path))
    (tmp_path / "ptxas").chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", str(tmp_path / "ptxas"))
    assert [each.verdict for each in judged("3.6.0")] == ["known", "passed"]
    failed, passed = judged("3.8.0")
    assert (failed.verdict, passed.verdict) == ("failed", "passed")
    assert "on sm_110 does not compile, but should: ptxas fatal   : Value 'sm_110a' is not defined" in failed.error
    assert any(
        line.startswith(f"Triton 3.8.0, {tmp_path}/ptxas ") for line in gate_report.text([passed], {}).split("\n")
    )


@pytest.mark.fault("triton-lang/triton#10462")
def test_the_assembler_that_triton_ships_knows_every_card(monkeypatch):
    """Also where a variable names one that does not exist. Under 3.6.0 it would be an unexpected pass."""
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", "/no/ptxas")
    assert [each.verdict for each in judged("3.6.0")] == ["unexpected pass", "passed"]
    assert {each.outcome.facts.assembler.split(" ")[0] for each in judged("3.8.0")} == {"ptxas-blackwell"}
    listed = [(capability, LAUNCH) for capability in gates.GATED]
    assert all(each.facts for each in gate_run.run(listed, gate_run.Settings(1)))
