"""This host's GPUs as NVML knows them, and those that CUDA_VISIBLE_DEVICES leaves to a session. Imports no torch.

python -m nvfp4_suite.ci.gpus                                    lists them, a kind a paragraph
python -m nvfp4_suite.ci.gpus --expect "NVIDIA H200 (sm_90)"     and fails unless they are of this kind alone
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .environment import CHOOSES_GPUS

Kind = tuple[str, tuple[int, int]]  # name and compute capability: what plans, and so results, go by


class NoGpu(RuntimeError):
    """There is no GPU to test on: why, and what would be one."""


@dataclass(frozen=True)
class Device:
    """What one CUDA process can be given: a whole GPU, or one MIG instance of it.

    `index` is the GPU's place in NVML's order, that of the PCI bus. Of an instance, `gpu` is the whole GPU's UUID, and
    `legacy` the name that drivers before R470 gave it. `total` and `free` are bytes, None where NVML does not say.
    `problem` is what NVML said instead of all the rest.
    """

    uuid: str
    index: int
    name: str = ""
    capability: tuple[int, int] = (0, 0)
    total: int | None = None
    free: int | None = None
    gpu: str | None = None
    legacy: str | None = None
    problem: str | None = None

    @property
    def kind(self) -> Kind:
        return self.name, self.capability

    def __str__(self) -> str:
        return f"GPU {self.index} {self.uuid}" + (f" ({self.problem})" if self.problem else "")


@dataclass(frozen=True)
class Visible:
    """A device, and what CUDA_VISIBLE_DEVICES must say for a process to see it alone.

    Where the variable was set, `spelling` is its own element, whatever that means to CUDA: no process leaves the list.
    """

    spelling: str
    device: Device


def discover() -> list[Device]:
    """All devices of this host, in NVML's order. A GPU in MIG mode is its instances. Raises NoGpu without NVML."""
    nvml = _nvml()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoGpu(f"needs a CUDA GPU, but NVML says: {error}") from None
    try:
        return [device for index in range(nvml.nvmlDeviceGetCount()) for device in _devices(nvml, index)]
    finally:
        nvml.nvmlShutdown()


def driver_version() -> str:
    """The driver's version, as "580.65.06"."""
    nvml = _nvml()
    nvml.nvmlInit()
    try:
        return nvml.nvmlSystemGetDriverVersion()
    finally:
        nvml.nvmlShutdown()


def is_lost(uuid: str) -> bool:
    """Whether NVML no longer answers for a device that it once named."""
    try:
        return not any(device.uuid == uuid and not device.problem for device in discover())
    except NoGpu:
        return True


def _nvml():
    try:
        import pynvml  # of nvidia-ml-py
    except ImportError:
        raise NoGpu("needs a CUDA GPU, and nvidia-ml-py to find it, which this Python does not have") from None
    return pynvml


def _devices(nvml, index: int) -> Iterator[Device]:
    """One GPU's devices: itself, its MIG instances, or what is wrong with it."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, capability = nvml.nvmlDeviceGetUUID(handle), tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
        if _is_split(nvml, handle):
            yield from _instances(nvml, handle, index, uuid, capability)
        else:
            yield Device(uuid, index, nvml.nvmlDeviceGetName(handle), capability, **_memory(nvml, handle))
    except nvml.NVMLError as error:
        yield Device(f"index {index}", index, problem=str(error))


def _is_split(nvml, handle) -> bool:
    try:
        return nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError:  # a GPU that has no such mode
        return False


def _instances(nvml, handle, index: int, gpu: str, capability: tuple[int, int]) -> Iterator[Device]:
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except nvml.NVMLError:  # no instance in this place
            continue
        ids = nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig)
        legacy = "MIG-{}/{}/{}".format(gpu, *ids)
        named = {"name": nvml.nvmlDeviceGetName(mig), "gpu": gpu, "legacy": legacy}
        yield Device(nvml.nvmlDeviceGetUUID(mig), index, capability=capability, **named, **_memory(nvml, mig))


def _memory(nvml, handle) -> dict[str, int]:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:  # cards that share the host's memory have none of their own
        return {}
    return {"total": memory.total, "free": memory.free}


def visible(devices: Iterable[Device], outer: str | None) -> list[Visible]:
    """Those of `devices` that `outer`, the value of CUDA_VISIBLE_DEVICES (None: unset), leaves to this process.

    It is a list of indices, UUIDs or beginnings of UUIDs, and names of MIG instances; CUDA reads it up to the first
    element that is empty or negative, so "" and "-1" are no GPU at all. A GPU in MIG mode stands for its first
    instance. Raises NoGpu for an element that names no device or several, which CUDA would drop without a word, for a
    device named twice, and for one that NVML has a problem with.
    """
    devices = list(devices)
    if outer is None:
        chosen = [Visible(device.uuid, device) for device in devices]
    else:
        chosen = [Visible(element, _named(element, devices, outer)) for element in _elements(outer)]
    uuids = [one.device.uuid for one in chosen]
    for one in chosen:
        if one.device.problem:
            raise NoGpu(f"cannot test on {one.device}; leave it out by naming the others in CUDA_VISIBLE_DEVICES")
        if uuids.count(one.device.uuid) > 1:
            raise NoGpu(f"CUDA_VISIBLE_DEVICES is {outer!r}, but should name {one.device} once")
    return chosen


def _elements(outer: str) -> Iterator[str]:
    for element in map(str.strip, outer.split(",")):
        if not element or element.startswith("-") or element == "NoDevFiles":
            return
        yield element


def _named(element: str, devices: list[Device], outer: str) -> Device:
    if element.isdecimal():
        found = [device for device in devices if device.index == int(element)][:1]
    else:
        found = [device for device in devices if device.uuid.startswith(element) or device.legacy == element]
        found = found or [device for device in devices if device.gpu and device.gpu.startswith(element)][:1]
    if len(found) != 1:
        what = "is several devices" if found else "is no device"
        raise NoGpu(f"CUDA_VISIBLE_DEVICES is {outer!r}, of which {element!r} {what} of this host")
    return found[0]


def mine() -> list[Visible]:
    """The devices that this process may use, as its environment says. Raises NoGpu where there are none."""
    outer = os.environ.get(CHOOSES_GPUS)
    found = visible(discover(), outer)
    if not found:
        why = "NVML finds none" if outer is None else f"CUDA_VISIBLE_DEVICES is {outer!r}"
        raise NoGpu(f"needs a CUDA GPU, but {why}")
    return found


def kinds(found: Iterable[Visible]) -> dict[Kind, list[Visible]]:
    """`found` by kind. Equal GPUs share the work of a session; each kind needs a session of its own."""
    groups: dict[Kind, list[Visible]] = {}
    for one in found:
        groups.setdefault(one.device.kind, []).append(one)
    return groups


def kind_name(kind: Kind) -> str:
    """As "NVIDIA H200 (sm_90)"."""
    return "{} (sm_{}{})".format(kind[0], *kind[1])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nvfp4_suite.ci.gpus", description="lists this host's GPUs")
    parser.add_argument("--expect", metavar="KIND", help="fail unless all are of this kind, as the list names it")
    expected = parser.parse_args(arguments).expect
    try:
        found = kinds(mine())
    except NoGpu as error:
        print(error, file=sys.stderr)
        return 1
    for kind, ones in found.items():
        print(f"{len(ones)} x {kind_name(kind)}", *(f"  {one.device}" for one in ones), sep="\n")
    names = [kind_name(kind) for kind in found]
    if expected is not None and names != [expected]:
        print(f"the kind of GPU is {' and '.join(names)}, but should be {expected}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
