"""GPU facts from answers of NVML, and from torch; and a machine without a GPU that says so.

No GPU was at hand: the answers are recorded from NVIDIA's documentation of the calls and data sheets of the boards, in
the shapes that nvidia-ml-py gives (objects with fields, whole numbers, `NVMLError` for what a device does not support).
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from agent.hardware import detect_gpus, facts_from_nvml, facts_from_torch


class NVMLError(Exception):
    """As pynvml names it."""


@dataclass(frozen=True)
class Machine:
    """One kind of machine, and how NVML's eight calls answer on it."""

    name: str | bytes
    count: int
    memory: int
    bus_bits: int | None
    clock_mhz: int
    links: tuple[int, ...] = ()
    """Version of each NVLink, 0 for one that is down."""

    def nvml(self, calls: list[str]) -> SimpleNamespace:
        """In the place of the module `pynvml`; opening and closing are noted."""
        return SimpleNamespace(
            NVMLError=NVMLError,
            nvmlInit=lambda: calls.append("open"),
            nvmlShutdown=lambda: calls.append("shut"),
            nvmlDeviceGetCount=lambda: self.count,
            nvmlDeviceGetHandleByIndex=lambda index: f"device {index}",
            nvmlDeviceGetName=lambda _: self.name,
            nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=self.memory, free=self.memory, used=0),
            nvmlDeviceGetMemoryBusWidth=lambda _: self._bus_width(),
            nvmlDeviceGetMaxClockInfo=lambda _, kind: {2: self.clock_mhz}[kind],
            nvmlDeviceGetNvLinkState=lambda _, link: int(self._link(link) > 0),
            nvmlDeviceGetNvLinkVersion=lambda _, link: self._link(link),
        )

    def _bus_width(self) -> int:
        if self.bus_bits is None:
            raise NVMLError("Not Supported")
        return self.bus_bits

    def _link(self, link: int) -> int:
        if link >= len(self.links):
            raise NVMLError("Invalid Argument")
        return self.links[link]


H100 = Machine("NVIDIA H100 80GB HBM3", 8, 85_520_809_984, 5120, 2619, (4,) * 18)
H200 = Machine("NVIDIA H200", 8, 150_754_820_096, 6144, 3201, (4,) * 18)
A100 = Machine(b"NVIDIA A100-SXM4-80GB", 4, 85_899_345_920, 5120, 1593, (3,) * 12)
L4 = Machine("NVIDIA L4", 1, 24_152_899_584, 192, 6251)
SLICE = Machine("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1, 10_200_547_328, None, 2619)


@pytest.mark.parametrize(
    ("machine", "reported"),
    [
        (H100, {"gpu": H100.name, "gpus": 8, "gpu_bandwidth_gb_s": 3352, "nvlink_gb_s": 450}),
        (H200, {"gpu": H200.name, "gpus": 8, "gpu_bandwidth_gb_s": 4917, "nvlink_gb_s": 450}),
        (A100, {"gpu": "NVIDIA A100-SXM4-80GB", "gpus": 4, "gpu_bandwidth_gb_s": 2039, "nvlink_gb_s": 300}),
        (L4, {"gpu": "NVIDIA L4", "gpus": 1, "gpu_bandwidth_gb_s": 300, "nvlink_gb_s": 0}),
        (SLICE, {"gpu": SLICE.name, "gpus": 1, "nvlink_gb_s": 0}),
    ],
    ids=["h100", "h200", "a100", "l4", "slice"],
)
def test_boards_are_reported_as_their_data_sheets_have_them(machine: Machine, reported: dict[str, Any]) -> None:
    """Bandwidths within a per cent or two of what NVIDIA states; what a device does not support is left out."""
    calls: list[str] = []
    assert facts_from_nvml(machine.nvml(calls)) == reported | {"gpu_memory_bytes": machine.memory}
    assert calls == ["open", "shut"]


def test_links_that_are_down_carry_nothing() -> None:
    """Six of eighteen are up."""
    assert facts_from_nvml(Machine("x", 1, 1, 1, 1, (4,) * 6 + (0,) * 12).nvml([]))["nvlink_gb_s"] == 150


def torch(count: int) -> Any:
    device = SimpleNamespace(name="AMD Instinct MI300X", total_memory=205_822_885_888)
    cuda = SimpleNamespace(
        is_available=lambda: count > 0, device_count=lambda: count, get_device_properties=lambda _: device
    )
    return SimpleNamespace(cuda=cuda)


def test_torch_reports_where_nvml_cannot() -> None:
    """As on a machine of another make, where torch stands in the agent's environment."""

    def load(name: str) -> Any:
        if name == "pynvml":
            raise ImportError("No module named 'pynvml'")
        return torch(8)

    gpus = detect_gpus(load)
    assert gpus.facts == {"gpu": "AMD Instinct MI300X", "gpus": 8, "gpu_memory_bytes": 205_822_885_888}
    assert "torch" in gpus.source
    assert facts_from_torch(torch(0)) == {}


def test_a_machine_without_gpus_says_so_and_why() -> None:
    """Nothing is raised, whatever drivers do."""

    def load(name: str) -> Any:
        if name == "torch":
            return torch(0)
        raise OSError("driver/library version mismatch")

    gpus = detect_gpus(load)
    assert gpus.facts == {"gpu": "none", "gpus": 0}
    assert gpus.source == "no GPU here (pynvml: driver/library version mismatch; torch: no device)"


def test_this_machine_is_reported_as_it_is() -> None:
    """The real library, with whatever is here: facts, or that there are none."""
    gpus = detect_gpus()
    assert gpus.facts["gpus"] == 0 or gpus.facts["gpu_memory_bytes"]
