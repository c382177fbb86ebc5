"""GPUs and RDMA ports are read while the agent runs; what cannot be read is left out.

No GPU was at hand: answers have the shapes of nvidia-ml-py.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent.node_readings import NodeReader, read_gpus, read_rdma_ports
from routing.pod_record import GpuReading, RdmaPort


class NVMLError(Exception):
    """As pynvml names it."""


class Driver:
    """A driver with two GPUs, and what it says by way of NVML."""

    def __init__(self, *, is_slice: bool = False) -> None:
        self.opened, self.is_slice, self.is_broken = 0, is_slice, False

    def nvml(self) -> SimpleNamespace:
        """In the place of the module `pynvml`."""
        return SimpleNamespace(
            NVMLError=NVMLError,
            nvmlInit=self._open,
            nvmlDeviceGetCount=self._count,
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(total=80, used=device * 10),
            nvmlDeviceGetUtilizationRates=self._use,
            nvmlDeviceGetPowerUsage=lambda _: 300_500,
        )

    def _open(self) -> None:
        self.opened += 1

    def _count(self) -> int:
        if self.is_broken:
            raise NVMLError("Driver Not Loaded")
        return 2

    def _use(self, device: int) -> SimpleNamespace:
        if self.is_slice:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=25 + device, memory=1)


def port(folder: Path, device: str, number: int, state: str, rate: str = "400 Gb/sec (4X NDR)") -> None:
    place = folder / device / "ports" / str(number)
    place.mkdir(parents=True, exist_ok=True)
    (place / "state").write_text(f"{state}\n")
    (place / "rate").write_text(f"{rate}\n")


def test_gpus_are_read_by_index() -> None:
    """Use as a share, memory in bytes, power in watts."""
    assert read_gpus(Driver().nvml()) == (GpuReading(0.25, 0, 80, 300.5), GpuReading(0.26, 10, 80, 300.5))


def test_a_slice_reports_no_use() -> None:
    """Its memory is still read."""
    assert [gpu.utilization for gpu in read_gpus(Driver(is_slice=True).nvml())] == [None, None]


def test_the_driver_is_opened_once_and_again_after_an_error(tmp_path: Path) -> None:
    """A reading that fails is empty."""
    driver = Driver()
    reader = NodeReader(lambda _: driver.nvml(), tmp_path)
    assert [len(reader.read().reading.gpus) for _ in range(2)] == [2, 2]
    assert driver.opened == 1
    driver.is_broken = True
    assert reader.read().reading.gpus == ()
    driver.is_broken = False
    assert len(reader.read().reading.gpus) == 2
    assert driver.opened == 2


def test_without_the_library_it_is_sought_once(tmp_path: Path) -> None:
    """A node without the extra still reads its ports."""
    sought: list[str] = []

    def load(name: str) -> Any:
        sought.append(name)
        raise ImportError(name)

    port(tmp_path, "mlx5_0", 1, "4: ACTIVE")
    reader = NodeReader(load, tmp_path)
    states = [reader.read() for _ in range(3)]
    assert sought == ["pynvml"]
    assert states[0].reading.rdma_ports == (RdmaPort("mlx5_0", 1, is_up=True),)
    assert states[0].nic_facts == {"nics": ["mlx5_0"], "nic_gbit_s": 400}


def test_a_port_that_goes_down_is_seen(tmp_path: Path) -> None:
    """By its state; the facts of its pods lose its rate."""
    port(tmp_path, "mlx5_0", 1, "4: ACTIVE")
    port(tmp_path, "mlx5_1", 1, "4: ACTIVE")
    reader = NodeReader(lambda _: Driver().nvml(), tmp_path)
    assert reader.read().nic_facts == {"nics": ["mlx5_0", "mlx5_1"], "nic_gbit_s": 800}
    port(tmp_path, "mlx5_1", 1, "1: DOWN")
    state = reader.read()
    assert [each.is_up for each in state.reading.rdma_ports] == [True, False]
    assert state.nic_facts == {"nics": ["mlx5_0"], "nic_gbit_s": 400}
    assert read_rdma_ports(tmp_path / "none") == ()
