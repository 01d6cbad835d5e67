"""Leases: who has which GPU, who has which place on it, and what becomes of both when somebody dies."""

import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest

from nvfp4_suite.ci import gpus, leases
from nvfp4_suite.ci.gpus import NoGpu
from nvfp4_suite.ci.leases import Placement

from .hosts import GIB, H200, HOSTS, L40S, cards

HOLD = """
import sys
from nvfp4_suite.ci import gpus, leases
from nvfp4_suite.ci.leases import Slot
device = gpus.Device(sys.argv[1], 0)
lock = Slot(gpus.Visible("", device), 0, None).hold() if sys.argv[2:] else leases.lease([gpus.Visible("", device)])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def placement(host):
    """A Placement of so many workers over a host's devices, as a session of its own has it."""
    held = []

    def place(name_or_host, workers: int, outer: str | None = None) -> Placement:
        host(HOSTS.get(name_or_host, name_or_host) if isinstance(name_or_host, str) else name_or_host)
        taken, busy = leases.lease(gpus.visible(gpus.discover(), outer))
        held.extend(taken)
        assert not busy
        return Placement(taken, workers)

    yield place
    for one in held:
        one.release()


@pytest.fixture
def holder():
    """Processes that hold a lease on a device, or a worker's place there."""
    started = []

    def start(uuid: str, *place: str) -> subprocess.Popen:
        command = [sys.executable, "-c", HOLD, uuid, *place]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout.readline() == "held\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def kill(child: subprocess.Popen) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait()


@pytest.mark.fault("triton-lang/triton#11831")
@pytest.mark.parametrize(
    ("name", "outer", "spellings"),
    [
        ("one", None, ["GPU-0000-5a5a"]),
        ("two", "1", ["1"]),
        ("eight", "2,3", ["2", "3"]),
        ("mixed", "GPU-1,GPU-2", ["GPU-1", "GPU-2"]),
        ("split", "MIG-bbbb-5a5a", ["MIG-bbbb-5a5a"]),
    ],
)
def test_every_worker_sees_one_element_of_the_outer_list(name, outer, spellings, placement):
    place = placement(name, 8, outer)
    found = [place.take(f"gw{number}").visible.spelling for number in range(8)]
    assert found == [spellings[number % len(spellings)] for number in range(8)]  # gw3 of "2,3" has "3"


def test_the_worker_that_replaces_another_has_its_place(placement):
    """The number of a worker says nothing: gw2 on two GPUs is not for the first, but for the one that is free."""
    place = placement("two", 2)
    first, second = place.take("gw0"), place.take("gw1")
    place.give_back("gw1")
    assert place.take("gw2") == second != first


def test_workers_of_a_lost_card_go_on_where_there_are_fewest(placement):
    place = placement("two", 4)
    slots = {name: place.take(name) for name in ("gw0", "gw1", "gw2", "gw3")}
    lost = slots["gw1"].visible.device.uuid
    place.lose(lost)
    for worker, successor in (("gw1", "gw4"), ("gw3", "gw5")):
        place.give_back(worker)
        slot = place.take(successor)
        assert slot.visible.device.uuid != lost
        assert slot.number == {"gw4": 2, "gw5": 3}[successor]
    place.lose(slot.visible.device.uuid)
    place.give_back("gw0")
    with pytest.raises(NoGpu, match="has no GPU left"):
        place.take("gw6")


@pytest.mark.fault("triton-lang/triton#11831")
@pytest.mark.parametrize("workers", [1, 3, 8, 16])
@pytest.mark.parametrize("free", [139 * GIB, 24 * GIB])
def test_what_the_workers_of_a_card_may_allocate_fits_into_it(workers, free, placement):
    place = placement(cards(H200 | {"free": free}), workers)
    budgets = [place.take(f"gw{number}").budget for number in range(workers)]
    assert sum(budget + leases.CONTEXT for budget in budgets) <= free or set(budgets) == {0}


@pytest.mark.parametrize(
    ("gpu", "cards_", "cores", "workers"),
    [
        (H200, 1, 16, 8),
        (H200, 1, 4, 4),
        (H200, 8, 16, 2),
        (H200, 8, 4, 1),
        (L40S, 1, 16, 2),  # its memory is enough for two
        (L40S | {"free": 4 * GIB}, 1, 16, 1),
        ({"name": "NVIDIA GB10"}, 1, 20, 1),  # NVML does not say what memory it has
    ],
)
def test_how_many_workers_a_card_gets(gpu, cards_, cores, workers, host):
    host(cards(*[gpu] * cards_))
    assert leases.workers_per_device(gpus.discover(), cores) == workers


@pytest.mark.parametrize(
    ("gpus_", "workers", "refused"),
    [
        ([H200, H200], 16, None),
        ([H200, H200], 17, "starts 16 workers at most on these 2 GPUs, which are free, 8 on each, but -n is 17"),
        ([H200], 9, "starts 8 workers at most on this GPU, which is free, 8 on each, but -n is 9"),
        ([L40S | {"free": 4 * GIB}], 8, None),  # the session says how much each has
    ],
)
def test_more_than_eight_workers_on_a_card_are_refused(gpus_, workers, refused, host):
    host(cards(*gpus_))
    with pytest.raises(NoGpu, match=refused) if refused else nullcontext():
        leases.refuse_crowds(gpus.discover(), workers)


def test_a_device_is_one_sessions_at_a_time(host, holder):
    host(HOSTS["two"])
    other = holder("GPU-0000-5a5a")
    taken, busy = leases.lease(gpus.mine())
    assert [one.device.uuid for one in taken] == ["GPU-1111-5a5a"]
    assert [one.device.uuid for one in busy] == ["GPU-0000-5a5a"]
    assert f"process {other.pid} of user" in busy[0].owner
    for one in taken:
        one.release()


def test_at_most_as_many_devices_are_leased_as_there_are_workers(host):
    host(HOSTS["eight"])
    taken, busy = leases.lease(gpus.mine(), most=2)
    assert (len(taken), busy) == (2, [])
    for one in taken:
        one.release()


def test_a_killed_session_leaves_its_device_with_its_last_worker(host, holder):
    host(HOSTS["one"])
    session, worker = holder("GPU-0000-5a5a"), holder("GPU-0000-5a5a", "place")
    kill(session)
    taken, busy = leases.lease(gpus.mine())
    assert not taken and "a worker that outlives its session" in busy[0].owner
    kill(worker)
    taken, busy = leases.lease(gpus.mine())
    assert taken and not busy
    taken[0].release()


def test_a_place_is_not_taken_before_its_last_worker_has_left_it(placement, holder):
    slot = placement("one", 1).take("gw0")
    worker = holder(slot.visible.device.uuid, "place")
    with pytest.raises(NoGpu, match=r"place 0 on GPU 0 GPU-0000-5a5a is still held, 0 s after its worker"):
        slot.hold(seconds=0.1)
    kill(worker)
    slot.hold(seconds=5).release()
