"""The tier for AMD GPUs: it says what compiles, and what does not is no failure."""

from dataclasses import replace

from nvfp4_suite.ci import gate_amd

LAUNCH = next(launch for launch in gate_amd.launches() if launch.kernel == "pointwise.sum_routes")


def test_each_architecture_is_told_in_a_line(monkeypatch):
    broken = replace(LAUNCH, constexprs=(("BLOCK", 500),))
    monkeypatch.setattr(gate_amd, "launches", lambda: [LAUNCH, broken])
    monkeypatch.setattr(gate_amd, "WARP_SIZES", {"gfx942": 64, "gfx1201": 32})
    found = gate_amd.lines(1)
    assert [line.partition(" of 2 launches compile")[0] for line in found] == ["gfx942: 1", "gfx1201: 1"]
    assert all("; 1 do not: arange's range must be a power of 2" in line for line in found)


def test_what_is_compiled_are_all_kernels_of_the_portable_plan_with_every_kind_of_k():
    assert set(gate_amd.WARP_SIZES) == {"gfx942", "gfx950", "gfx1151", "gfx1201"}
    units = {(launch.kernel, dict(launch.constexprs).get("K_UNIT")) for launch in gate_amd.launches()}
    assert {(kernel, unit) for kernel in ("gemm.w4a16_gemm", "gemv.w4a16_gemv") for unit in (16, 32)} <= units
