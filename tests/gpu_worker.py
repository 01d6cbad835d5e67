"""The process that runs tests on a GPU: it sees its own device alone, and ends when its CUDA context is dead."""

import contextlib
import ctypes
import gc
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from threading import Thread

import pytest

from nvfp4_suite.ci import sanitizer
from nvfp4_suite.ci.environment import CHOOSES_GPUS
from nvfp4_suite.ci.gpus import Device, NoGpu, Visible
from nvfp4_suite.ci.leases import Slot

from .order import group

DEAD = "dead CUDA context"  # the section of a report that says so
EXIT_CODE = 86  # of a worker that ends for this reason, or with its session
# Variables that say a tool watches this process: a sanitizer or profiler, or one that measures coverage.
WATCHERS = (sanitizer.VARIABLE, "LD_PRELOAD", "CUDA_INJECTION64_PATH", "COVERAGE_PROCESS_START")


def to_plain(slot: Slot) -> dict:
    """`slot` as what xdist can send to a worker."""
    return asdict(slot)


def from_plain(plain: dict) -> Slot:
    device = Device(**plain["visible"]["device"] | {"capability": tuple(plain["visible"]["device"]["capability"])})
    return Slot(Visible(plain["visible"]["spelling"], device), plain["number"], plain["budget"])


class Worker:
    """A pytest plugin, one per process that runs tests. Made before torch first looks for a device.

    `limits` is the file where the time limit of the test at hand is left for the controller; None without one.
    """

    def __init__(self, slot: Slot, *, alone: bool, limits: Path | None = None):
        self.slot = slot
        self.slots = [slot]
        self.alone = alone
        self.limits = limits
        self.dead: str | None = None
        self.failed = self.finished = False
        self._lock = None if alone else slot.hold()
        if not alone:
            Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        os.environ[CHOOSES_GPUS] = slot.visible.spelling
        Thread(target=_wake_the_driver, daemon=True).start()
        try:
            self._start_cuda()
        except NoGpu:  # xdist lets such a process live on, idle
            if self._lock:
                self._lock.release()
            raise

    def _start_cuda(self) -> None:
        """Raises NoGpu where torch has no CUDA device, or another one than is leased."""
        import torch

        device = self.slot.visible.device
        if torch.cuda.is_initialized():
            raise NoGpu("chose a GPU, but CUDA had been started before, on another one (by a plugin?)")
        if not torch.cuda.is_available():
            raise NoGpu(f"needs a CUDA GPU, but torch {torch.__version__} sees none where NVML has {device}")
        found = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
        if found and device.gpu is None and found != device.uuid.removeprefix("GPU-"):
            should = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID"
            raise NoGpu(f"leased {device}, but CUDA calls GPU-{found} {self.slot.visible.spelling!r}: {should}")
        if self.slot.budget is not None:
            torch.cuda.set_per_process_memory_fraction(min(self.slot.budget / device.total, 1.0), 0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item, settings):
        """Before the timer of pytest-timeout, which goes on to set it."""
        if self.limits:
            self.limits.write_text(str(settings.timeout))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):
        item.user_properties.append(("gpu", self.slot.visible.device.uuid))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        """What a test's kernels did wrong is that test's, also where it did not wait for them."""
        import torch

        result = yield
        torch.cuda.synchronize()
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item, nextitem):
        """With the last of the tests that go together goes what they share: two layers are too much for a worker."""
        if not self.dead and group(item) != group(nextitem):
            from .held import release

            release()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.failed:
            self.failed = True
            self.dead = _broken()
        if self.dead:
            report.sections.append(
                (DEAD, f"{self.dead}\nNothing can run on {self.slot.visible.device} in this process.")
            )
            if self.alone:
                item.session.shouldfail = f"the CUDA context is dead: {self.dead}"
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        """The report is on its way: behind it, another process takes over."""
        if self.dead and not self.alone:
            os._exit(EXIT_CODE)

    def pytest_sessionfinish(self):
        self.finished = True

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self):
        """All is told: the session need not wait a second for what Python, torch and CUDA take apart at their end.

        A tool that watches the process writes there what it saw.
        """
        if self.finished and not self.alone and not any(name in os.environ for name in WATCHERS):
            os._exit(0)

    def pytest_runtest_logfinish(self):
        """A failure's traceback holds tensors, gigabytes at worst, which the next test may need."""
        if "triton" in sys.modules:
            from .compile_once import CompileOnce

            CompileOnce.release()  # of a kernel that did not compile
        if self.failed and not self.dead:
            self.failed = False
            _forget_the_last_failure()


def _wake_the_driver() -> None:
    """Makes the context that torch will use, beside its import: each takes seconds. What fails here, torch will say."""
    with contextlib.suppress(OSError):
        driver, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _end_with(parent: int) -> None:
    """Ends this process soon after its session, which may be killed: the GPU is for others then."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(EXIT_CODE)


def _broken() -> str | None:
    """What CUDA answers, if it does nothing any more; an error that has passed leaves no trace."""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception as error:  # torch has changed its class
        return str(error).splitlines()[0]
    return None


def _forget_the_last_failure() -> None:
    import torch

    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    gc.collect()
    torch.cuda.empty_cache()
