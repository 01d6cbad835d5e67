"""GPUs leased to one session at a time, and shared out among its workers. Imports no torch.

A session's process holds a lock on a file per device, named by its UUID, and every worker one on a file of its own
beside it. The kernel drops a lock when its process ends, however it ends: a crashed worker's place is free at once, and
when a session is killed its devices are free as soon as its last worker has left them, not sooner.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from . import gpus
from .gpus import Device, NoGpu, Visible

FOLDER = "NVFP4_SUITE_LEASES"  # the variable that names another folder; containers of one host must share one
WORKERS = 8  # on one device, at most: more than these, compiling, do not make a run shorter
NEEDED = 16 * 2**30  # bytes: the largest test, of rows beyond 2^31 elements, takes 15.5e9 at once
CONTEXT = 2**30  # bytes of a CUDA context and its loaded code, which torch does not count; 0.5 were measured on an H200


@dataclass
class Lease:
    """A device that is this process's until `release` or its end."""

    visible: Visible
    lock: object = field(repr=False)

    @property
    def device(self) -> Device:
        return self.visible.device

    def release(self) -> None:
        self.lock.release()


@dataclass(frozen=True)
class Busy:
    """A device that is somebody else's, and whose."""

    device: Device
    owner: str


def folder() -> Path:
    """Where the locks lie: one folder for all users of the host, on a local disk."""
    path = Path(os.environ.get(FOLDER) or "/tmp/nvfp4_suite-leases")
    path.mkdir(parents=True, exist_ok=True)
    if path.stat().st_uid == os.getuid():
        path.chmod(0o777)  # without the sticky bit, under which Linux refuses to open another user's file for writing
    return path


def lease(visible: list[Visible], most: int | None = None) -> tuple[list[Lease], list[Busy]]:
    """Leases the free ones of `visible`, `most` of them at most, without waiting; and those that are not free."""
    leases: list[Lease] = []
    busy: list[Busy] = []
    for one in visible:
        if most is not None and len(leases) == most:
            break
        found = _take(one)
        (leases if isinstance(found, Lease) else busy).append(found)
    return leases, busy


def lease_mine(most: int | None = None, *, one_kind: str = "") -> tuple[list[Lease], list[Busy]]:
    """`lease` of the devices that this process may use. Raises NoGpu where there are none, or where none is free.

    Also where they are of several kinds: `one_kind` says what to do about it.
    """
    found = gpus.mine()
    kinds = [gpus.kind_name(kind) for kind in gpus.kinds(found)]
    if len(kinds) > 1:
        raise NoGpu(f"has GPUs of {len(kinds)} kinds, {' and '.join(kinds)}, but a session tests one kind: {one_kind}")
    leased, busy = lease(found, most)
    if not leased:
        raise NoGpu("finds no free GPU: " + "; ".join(f"{one.device} is held by {one.owner}" for one in busy))
    return leased, busy


def _take(one: Visible) -> Lease | Busy:
    lock = _lock(_path(one.device.uuid, "lock"))
    owner = _path(one.device.uuid, "owner")
    if not _acquired(lock):
        return Busy(one.device, owner.read_text() if owner.exists() else "somebody")
    for path in folder().glob(f"{_stem(one.device.uuid)}.slot*.lock"):
        slot = _lock(path)
        if not _acquired(slot):
            lock.release()
            return Busy(one.device, f"a worker that outlives its session ({path.name})")
        slot.release()
    _write(owner, f"process {os.getpid()} of user {os.getuid()}: {' '.join(sys.argv)[:200]}")
    return Lease(one, lock)


def _stem(uuid: str) -> str:
    return uuid.replace("/", "_")


def _path(uuid: str, suffix: str) -> Path:
    return folder() / f"{_stem(uuid)}.{suffix}"


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    if path.stat().st_uid == os.getuid():
        path.chmod(0o666)


def _lock(path: Path):
    from filelock import FileLock

    return FileLock(path, mode=0o666)


def _acquired(lock, seconds: float = 0) -> bool:
    from filelock import Timeout

    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        return False
    return True


def cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def workers_per_device(devices: list[Device], cores: int) -> int:
    """How many workers each of `devices` gets: what its free memory and its part of the `cores` allow, at least one."""
    memory = min((device.free or NEEDED) // NEEDED for device in devices)
    return max(1, min(WORKERS, memory, cores // len(devices)))


def refuse_crowds(devices: list[Device], workers: int) -> None:
    """Raises NoGpu where so many `workers` in all are more than WORKERS on one device."""
    if workers > (most := WORKERS * len(devices)):
        free = "this GPU, which is free" if len(devices) == 1 else f"these {len(devices)} GPUs, which are free"
        raise NoGpu(f"starts {most} workers at most on {free}, {WORKERS} on each, but -n is {workers}")


def budget(device: Device, workers: int) -> int | None:
    """Bytes that each of so many `workers` on `device` may allocate, so that together they fit. None: unknown."""
    return None if device.free is None else max(device.free // workers - CONTEXT, 0)


@dataclass(frozen=True)
class Slot:
    """One worker's place on a device: what it sees, what it may allocate, and its number there."""

    visible: Visible
    number: int
    budget: int | None

    def hold(self, seconds: float = 60):
        """The lock on this place, for the process that takes it. Raises NoGpu if its last worker does not leave it."""
        lock = _lock(_path(self.visible.device.uuid, f"slot{self.number}.lock"))
        if not _acquired(lock, seconds):
            raise NoGpu(f"place {self.number} on {self.visible.device} is still held, {seconds:.0f} s after its worker")
        return lock


class Placement:
    """Which worker has which place. A worker that replaces another gets the place that is free, whatever its number."""

    def __init__(self, leases: list[Lease], workers: int):
        each = [len(range(place, workers, len(leases))) for place in range(len(leases))]
        self._free = [
            Slot(one.visible, number, budget(one.device, many))
            for one, many in zip(leases, each, strict=True)
            for number in range(many)
        ]
        self._free.sort(key=lambda slot: slot.number)  # one worker on every device before the second on any
        self._taken: dict[str, Slot] = {}
        self._lost: set[str] = set()

    @property
    def free(self) -> list[Slot]:
        """The places that no worker has."""
        return list(self._free)

    def take(self, worker: str) -> Slot:
        """Raises NoGpu where every device is lost."""
        self._taken[worker] = slot = self._free.pop(0) if self._free else self._one_more()
        return slot

    def give_back(self, worker: str) -> Slot | None:
        """The place of a worker that has ended is free again, unless its device is lost."""
        slot = self._taken.pop(worker, None)
        if slot and slot.visible.device.uuid not in self._lost:
            self._free.insert(0, slot)
        return slot

    def lose(self, uuid: str) -> None:
        """A device is gone, and all places on it."""
        self._lost.add(uuid)
        self._free = [slot for slot in self._free if slot.visible.device.uuid != uuid]

    def _one_more(self) -> Slot:
        """For a worker whose device was lost: one more place where there are fewest, with the budget of those there."""
        left = [slot for slot in self._taken.values() if slot.visible.device.uuid not in self._lost]
        if not left:
            raise NoGpu("has no GPU left: all that it had are lost")
        on = [slot.visible.device.uuid for slot in left]
        like = min(left, key=lambda slot: on.count(slot.visible.device.uuid))
        return Slot(like.visible, 1 + max(s.number for s in left if s.visible == like.visible), like.budget)
