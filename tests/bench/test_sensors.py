"""What NVML says of a card, and what is left where it says nothing."""

import pynvml
import pytest

from nvfp4_suite.bench.sensors import REASONS, Reading, Sensors, summary


@pytest.fixture
def card(monkeypatch):
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: {"GPU-1": "handle"}[uuid],
        "nvmlDeviceGetClockInfo": lambda handle, kind: {0: 0, 1: 1755, 2: 2619}[kind],
        "nvmlDeviceGetTemperature": lambda handle, kind: 61,
        "nvmlDeviceGetPowerUsage": lambda handle: 698_500,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x24,
    }
    for name, function in answers.items():
        monkeypatch.setattr(pynvml, name, function)
    return monkeypatch


def test_a_reading_is_in_megahertz_celsius_and_watts(card):
    sensors = Sensors("GPU-1")
    assert sensors.read() == Reading(1755, 2619, 61, 698.5, 0x24) and sensors.problem is None


def test_what_a_card_does_not_have_is_none(card):
    def missing(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    card.setattr(pynvml, "nvmlDeviceGetPowerUsage", missing)
    card.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", missing)
    assert Sensors("GPU-1").read() == Reading(1755, 2619, 61, None, 0)


def test_no_card_has_no_readings(card):
    assert Sensors("GPU-2").read() == Sensors(None).read() == Reading()
    assert "KeyError" in Sensors("GPU-2").problem
    assert summary([Reading()]) == {"slowed_by": []}


def test_a_summary_has_the_worst_of_what_matters():
    found = summary([Reading(1980, 2619, 50, 600.0, 0x4), Reading(1400, 2619, 63, 700.0, 0x40), Reading()])
    assert found["sm_mhz"] == 1690 and found["sm_mhz_lowest"] == 1400
    assert found["celsius"] == 63 and found["watts"] == 650.0
    assert found["slowed_by"] == ["power cap", "thermal, hardware"]


def test_the_bits_are_nvmls():
    """But for idle, the one reason that does not slow a card that is at work."""
    names = [name for name in vars(pynvml) if name.startswith("nvmlClocksEventReason")]
    bits = {getattr(pynvml, name) for name in names} - {0, 1, pynvml.nvmlClocksEventReasonAll}
    assert {bit for bit in bits if bit & (bit - 1) == 0} <= set(REASONS)
