"""How well a session filled its GPUs: each one's tests, and how much of the session it was at work on any of them."""

from collections import defaultdict
from collections.abc import Iterable

from nvfp4_suite.ci.gpus import Device

Span = tuple[float, float]  # seconds, from and until


class Usage:
    """A pytest plugin of the process that hears of every test. A test's user property "gpu" says where it ran."""

    def __init__(self, devices: list[Device]):
        self.devices = devices
        self._tests: dict[str, set[str]] = defaultdict(set)
        self._spans: dict[str, list[Span]] = defaultdict(list)

    def pytest_runtest_logreport(self, report):
        for name, uuid in report.user_properties:
            if name == "gpu":
                self._tests[uuid].add(report.nodeid)
                self._spans[uuid].append((report.start, report.stop))

    def pytest_terminal_summary(self, terminalreporter):
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> list[str]:
        """As "GPU 0 GPU-5a5a: at work 97% of 92 s, tests: 612", a line for each device."""
        every = [span for spans in self._spans.values() for span in spans]
        if not every:
            return []
        whole = max(stop for _, stop in every) - min(start for start, _ in every)
        return [self._line(device, whole) for device in self.devices]

    def _line(self, device: Device, whole: float) -> str:
        share = covered(self._spans[device.uuid]) / whole if whole else 1.0
        return f"{device}: at work {share:.0%} of {whole:.0f} s, tests: {len(self._tests[device.uuid])}"


def covered(spans: Iterable[Span]) -> float:
    """Seconds that lie in one of the spans at least: workers of one GPU overlap."""
    total, until = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(stop - max(start, until), 0.0)
        until = max(until, stop)
    return total
