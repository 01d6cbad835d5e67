"""Stands in for torch with CUDA, beside the fake pynvml: enough for a session whose tests need no tensor."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

__version__ = "0.0+fake"
version = SimpleNamespace(cuda="13.0", hip=None)


class OutOfMemoryError(RuntimeError):
    pass


class AcceleratorError(RuntimeError):
    pass


class _Cuda:
    """One process's CUDA: it sees what CUDA_VISIBLE_DEVICES says when it is first used; `dead` is a broken context."""

    dead = False
    fraction = None
    OutOfMemoryError = OutOfMemoryError

    def _gpus(self) -> list[dict]:
        every = json.loads(Path(os.environ["FAKE_HOST"]).read_text())
        devices = [device for gpu in every for device in gpu.get("mig", [gpu])]
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
        return [_named(name, devices) for name in names]

    def is_available(self):
        return bool(self._gpus())

    def is_initialized(self):
        return False

    def get_device_properties(self, index):
        gpu = self._gpus()[index]
        major, minor = gpu.get("capability", [9, 0])
        uuid = gpu["uuid"].removeprefix("GPU-")
        return SimpleNamespace(name=gpu["name"], major=major, minor=minor, uuid=uuid, total_memory=gpu.get("total"))

    def set_per_process_memory_fraction(self, fraction, device=None):
        self.fraction = fraction

    def synchronize(self):
        if self.dead:
            raise AcceleratorError("CUDA error: an illegal memory access was encountered")

    def empty_cache(self):
        self.synchronize()


def _named(name: str, devices: list[dict]) -> dict:
    if name.isdecimal():
        return devices[int(name)]
    return next(device for device in devices if device["uuid"].startswith(name))


cuda = _Cuda()


def __getattr__(name: str):
    """Whatever else the rooms mention while they are imported: a class that nobody makes anything of."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
