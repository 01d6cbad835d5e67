"""Stands in for nvidia-ml-py where there is no GPU: the host that the variable FAKE_HOST describes, in JSON.

A list of GPUs: {"uuid", "name", "capability", "total", "free"}, with "mig", a list of such instances, for one in MIG
mode, or with "lost": true.
"""

import json
import os
from types import SimpleNamespace

NVML_DEVICE_MIG_ENABLE = 1


class NVMLError(Exception):
    pass


def _host() -> list[dict]:
    if "FAKE_HOST" not in os.environ:
        raise NVMLError("NVML Shared Library Not Found")
    with open(os.environ["FAKE_HOST"]) as file:
        return json.load(file)


def nvmlInit():
    _host()


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return "580.0"


def nvmlDeviceGetCount():
    return len(_host())


def nvmlDeviceGetHandleByIndex(index):
    gpu = _host()[index]
    if gpu.get("lost"):
        raise NVMLError("GPU is lost")
    return gpu


def nvmlDeviceGetUUID(handle):
    return handle["uuid"]


def nvmlDeviceGetName(handle):
    return handle["name"]


def nvmlDeviceGetCudaComputeCapability(handle):
    return handle.get("capability", [9, 0])


def nvmlDeviceGetMemoryInfo(handle):
    if "total" not in handle:
        raise NVMLError("Not Supported")
    return SimpleNamespace(total=handle["total"], free=handle.get("free", handle["total"]))


def nvmlDeviceGetMigMode(handle):
    if "mig" not in handle:
        raise NVMLError("Not Supported")
    return [NVML_DEVICE_MIG_ENABLE, NVML_DEVICE_MIG_ENABLE]


def nvmlDeviceGetMaxMigDeviceCount(handle):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle, place):
    if place >= len(handle["mig"]):
        raise NVMLError("Not Found")
    return handle["mig"][place] | {"place": place}


def nvmlDeviceGetGpuInstanceId(handle):
    return handle["place"] + 1


def nvmlDeviceGetComputeInstanceId(handle):
    return 0
