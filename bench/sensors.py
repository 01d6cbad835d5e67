"""What the card does while it is timed: clocks, temperature, power, and what slows it, by NVML. Imports no torch."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

# Bits of NVML's clocks event reasons, nvml.h; idle, 0x1, is none.
REASONS = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
    0x100: "display clocks",
}


@dataclass(frozen=True)
class Reading:
    """MHz, degrees Celsius and watts; None where NVML does not say. `reasons` are bits of REASONS."""

    sm: int | None = None
    memory: int | None = None
    celsius: int | None = None
    watts: float | None = None
    reasons: int = 0


class Sensors:
    """Those of the GPU with this UUID; of none, or without NVML, readings are empty and `problem` says why."""

    def __init__(self, uuid: str | None):
        self._nvml = self._handle = None
        self.problem = "no GPU"
        if uuid is None:
            return
        try:
            import pynvml  # of nvidia-ml-py

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._nvml, self.problem = pynvml, None
        except Exception as error:  # a missing package or library, an unknown UUID: the clocks stay unknown
            self.problem = f"{type(error).__name__}: {error}"

    def read(self) -> Reading:
        nvml, handle = self._nvml, self._handle
        if nvml is None:
            return Reading()
        watts = _asked(nvml.nvmlDeviceGetPowerUsage, handle)
        return Reading(
            _asked(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            _asked(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            _asked(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            None if watts is None else watts / 1000,
            _asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0,
        )


def _asked(function, *arguments):
    """What NVML answers; None where the card does not have it."""
    with suppress(Exception):
        return function(*arguments)
    return None


def summary(readings: Sequence[Reading]) -> dict:
    """As a row has it: medians of clocks and power, the lowest SM clock, the highest temperature, why it was slowed."""
    found = {
        "sm_mhz": _of(median, readings, "sm"),
        "sm_mhz_lowest": _of(min, readings, "sm"),
        "memory_mhz": _of(median, readings, "memory"),
        "celsius": _of(max, readings, "celsius"),
        "watts": _of(median, readings, "watts"),
    }
    slowed = [name for bit, name in REASONS.items() if any(one.reasons & bit for one in readings)]
    return {name: value for name, value in found.items() if value is not None} | {"slowed_by": slowed}


def _of(choose, readings: Sequence[Reading], name: str):
    values = [getattr(one, name) for one in readings if getattr(one, name) is not None]
    return choose(values) if values else None
