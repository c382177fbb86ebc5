"""GPU facts from answers of NVML, and from torch; and a machine without a GPU that says so.

No GPU was at hand: the answers are recorded from NVIDIA's documentation of the calls and data sheets of the boards, in
the shapes that nvidia-ml-py gives (objects with fields, whole numbers, `NVMLError` for what a device does not support).
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.agent.gpus import look_for_gpus, told_by_nvml, told_by_torch


class NVMLError(Exception):
    """As pynvml names it."""


@dataclass
class RecordedNvml:
    """Eight functions of pynvml, answering as one kind of machine does."""

    name: str | bytes
    count: int
    memory: int
    bus_bits: int | None
    clock_mhz: int
    links: tuple[int, ...] = ()
    """Version of each NVLink, 0 for one that is down."""
    NVMLError: type[Exception] = NVMLError
    shut: list[str] = field(default_factory=list)

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self.shut.append("open")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut.append("shut")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"device {index}"

    def nvmlDeviceGetName(self, device: str) -> str | bytes:  # noqa: N802
        return self.name

    def nvmlDeviceGetMemoryInfo(self, device: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=self.memory, free=self.memory, used=0)

    def nvmlDeviceGetMemoryBusWidth(self, device: str) -> int:  # noqa: N802
        if self.bus_bits is None:
            raise NVMLError("Not Supported")
        return self.bus_bits

    def nvmlDeviceGetMaxClockInfo(self, device: str, kind: int) -> int:  # noqa: N802
        assert kind == 2  # memory
        return self.clock_mhz

    def nvmlDeviceGetNvLinkState(self, device: str, link: int) -> int:  # noqa: N802
        if link >= len(self.links):
            raise NVMLError("Invalid Argument")
        return int(self.links[link] > 0)

    def nvmlDeviceGetNvLinkVersion(self, device: str, link: int) -> int:  # noqa: N802
        return self.links[link]


H100 = RecordedNvml("NVIDIA H100 80GB HBM3", 8, 85_520_809_984, 5120, 2619, (4,) * 18)
H200 = RecordedNvml("NVIDIA H200", 8, 150_754_820_096, 6144, 3201, (4,) * 18)
A100 = RecordedNvml(b"NVIDIA A100-SXM4-80GB", 4, 85_899_345_920, 5120, 1593, (3,) * 12)
L4 = RecordedNvml("NVIDIA L4", 1, 24_152_899_584, 192, 6251)
SLICE = RecordedNvml("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1, 10_200_547_328, None, 2619)


@pytest.mark.parametrize(
    ("nvml", "told"),
    [
        (H100, {"gpu": H100.name, "gpus": 8, "gpu_bandwidth_gb_s": 3352, "nvlink_gb_s": 450}),
        (H200, {"gpu": H200.name, "gpus": 8, "gpu_bandwidth_gb_s": 4917, "nvlink_gb_s": 450}),
        (A100, {"gpu": "NVIDIA A100-SXM4-80GB", "gpus": 4, "gpu_bandwidth_gb_s": 2039, "nvlink_gb_s": 300}),
        (L4, {"gpu": "NVIDIA L4", "gpus": 1, "gpu_bandwidth_gb_s": 300, "nvlink_gb_s": 0}),
        (SLICE, {"gpu": SLICE.name, "gpus": 1, "nvlink_gb_s": 0}),
    ],
    ids=["h100", "h200", "a100", "l4", "slice"],
)
def test_boards_are_told_as_their_data_sheets_have_them(nvml: RecordedNvml, told: dict[str, Any]) -> None:
    """Bandwidths within a per cent or two of what NVIDIA states; what a device does not support is left out."""
    assert told_by_nvml(nvml) == told | {"gpu_memory_bytes": nvml.memory}
    assert nvml.shut[-1] == "shut"


def test_links_that_are_down_carry_nothing() -> None:
    """Six of eighteen are up."""
    assert told_by_nvml(RecordedNvml("x", 1, 1, 1, 1, (4,) * 6 + (0,) * 12))["nvlink_gb_s"] == 150


def torch(count: int) -> Any:
    device = SimpleNamespace(name="AMD Instinct MI300X", total_memory=205_822_885_888)
    cuda = SimpleNamespace(
        is_available=lambda: count > 0, device_count=lambda: count, get_device_properties=lambda _: device
    )
    return SimpleNamespace(cuda=cuda)


def test_torch_tells_where_nvml_cannot() -> None:
    """As on a machine of another make, where torch stands in the agent's environment."""

    def load(name: str) -> Any:
        if name == "pynvml":
            raise ImportError("No module named 'pynvml'")
        return torch(8)

    gpus = look_for_gpus(load)
    assert gpus.told == {"gpu": "AMD Instinct MI300X", "gpus": 8, "gpu_memory_bytes": 205_822_885_888}
    assert "torch" in gpus.words
    assert told_by_torch(torch(0)) == {}


def test_a_machine_without_gpus_says_so_and_why() -> None:
    """Nothing is raised, whatever drivers do."""

    def load(name: str) -> Any:
        if name == "torch":
            return torch(0)
        raise OSError("driver/library version mismatch")

    gpus = look_for_gpus(load)
    assert gpus.told == {"gpu": "none", "gpus": 0}
    assert gpus.words == "no GPU here (pynvml: driver/library version mismatch; torch: no device)"


def test_this_machine_is_told_as_it_is() -> None:
    """The real library, with whatever is here: facts, or that there are none."""
    gpus = look_for_gpus()
    assert gpus.told["gpus"] == 0 or gpus.told["gpu_memory_bytes"]
