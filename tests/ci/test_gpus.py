"""Which GPUs a session finds, and which of them the variable CUDA_VISIBLE_DEVICES leaves to it."""

import pytest

from nvfp4_suite.ci import gpus
from nvfp4_suite.ci.gpus import NoGpu

from .hosts import H200, HOSTS, cards, mig

ZERO, ONE, TWO = (f"GPU-{digit * 4}-5a5a" for digit in "012")
A, B = "MIG-aaaa-5a5a", "MIG-bbbb-5a5a"


@pytest.mark.fault("triton-lang/triton#11831")
@pytest.mark.parametrize(
    ("name", "outer", "uuids"),
    [
        ("one", None, [ZERO]),
        ("eight", None, [f"GPU-{digit * 4}-5a5a" for digit in "01234567"]),
        ("mixed", "1", [ONE]),
        ("mixed", "2,1", [TWO, ONE]),
        ("mixed", " 2 , 1 ", [TWO, ONE]),
        ("mixed", f"{TWO},{ZERO}", [TWO, ZERO]),
        ("mixed", "GPU-2,GPU-00", [TWO, ZERO]),  # the beginning of a UUID is enough
        ("mixed", "", []),
        ("mixed", "-1", []),
        ("mixed", "NoDevFiles", []),
        ("mixed", "1,-1,2", [ONE]),  # CUDA reads no further
        ("mixed", "1,,2", [ONE]),
        ("split", None, [A, B, ONE]),
        ("split", B, [B]),
        ("split", "MIG-bb", [B]),
        ("split", f"MIG-{ZERO}/2/0", [B]),  # its name before R470
        ("split", "0", [A]),
        ("split", "GPU-0,1", [A, ONE]),
    ],
)
def test_visible_devices_are_those_of_the_variable_in_its_order(name, outer, uuids, host):
    host(HOSTS[name])
    found = gpus.visible(gpus.discover(), outer)
    assert [one.device.uuid for one in found] == uuids
    if outer is not None:
        elements = [element.strip() for element in outer.split(",")]
        assert [one.spelling for one in found] == elements[: len(found)]


@pytest.mark.fault("triton-lang/triton#11831")
@pytest.mark.parametrize(
    ("outer", "message"),
    [
        ("3", "'3' is no device of this host"),
        ("0,GPU-9", "'GPU-9' is no device of this host"),
        ("GPU-", "'GPU-' is several devices of this host"),
        ("1,GPU-1", "should name GPU 1 GPU-1111-5a5a once"),
        ("0,banana", "'banana' is no device"),
    ],
)
def test_an_element_that_cuda_would_drop_is_refused(outer, message, host):
    host(HOSTS["mixed"])
    with pytest.raises(NoGpu, match=message):
        gpus.visible(gpus.discover(), outer)


def test_a_card_in_mig_mode_without_instances_is_no_device(host):
    host(cards(mig(count=0), H200))
    assert [device.uuid for device in gpus.discover()] == [ONE]


def test_a_lost_card_is_refused_and_can_be_left_out(host):
    host(cards(H200, H200 | {"lost": True}))
    with pytest.raises(NoGpu, match="cannot test on GPU 1 index 1 \\(GPU is lost\\); leave it out"):
        gpus.mine()
    assert [one.device.uuid for one in gpus.visible(gpus.discover(), "0")] == [ZERO]
    assert gpus.is_lost(ONE) and not gpus.is_lost(ZERO)


@pytest.mark.parametrize("outer", ["", "-1"])
def test_no_visible_device_is_said_with_its_reason(outer, host, monkeypatch):
    host(HOSTS["two"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outer)
    with pytest.raises(NoGpu, match=f"needs a CUDA GPU, but CUDA_VISIBLE_DEVICES is '{outer}'"):
        gpus.mine()


def test_no_driver_is_said_in_its_words(host, monkeypatch):
    host([])
    with pytest.raises(NoGpu, match="needs a CUDA GPU, but NVML finds none"):
        gpus.mine()
    monkeypatch.delenv("FAKE_HOST")
    with pytest.raises(NoGpu, match="NVML Shared Library Not Found"):
        gpus.mine()


def test_the_page_of_a_mixed_host_has_a_paragraph_for_each_kind(host, capsys):
    host(HOSTS["mixed"])
    assert gpus.main([]) == 0
    lines = [f"  GPU {place} {uuid}" for place, uuid in enumerate((ZERO, ONE, TWO))]
    wanted = ["1 x NVIDIA H200 (sm_90)", lines[0], "2 x NVIDIA L40S (sm_89)", *lines[1:]]
    assert capsys.readouterr().out.splitlines() == wanted


@pytest.mark.parametrize(
    ("name", "expected", "code"),
    [
        ("two", "NVIDIA H200 (sm_90)", 0),
        ("two", "NVIDIA L40S (sm_89)", 1),
        ("two", "NVIDIA H200", 1),
        ("mixed", "NVIDIA H200 (sm_90)", 1),
        ("two", "", 1),
    ],
)
def test_a_host_with_other_cards_than_expected_fails(name, expected, code, host, capsys):
    host(HOSTS[name])
    assert gpus.main(["--expect", expected]) == code
    assert (f"but should be {expected}" in capsys.readouterr().err) == bool(code)
