"""Readings of the node that change while it runs: use of its GPUs by NVML, and the state of its RDMA ports.

Each reading blocks: drivers may take seconds to answer, so the agent reads in a thread. Without GPUs or without NVML
there are no GPU readings; RDMA ports are read from the kernel's files all the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.hardware import INFINIBAND, detect_nics
from routing.pod_record import MAX_GPUS, MAX_RDMA_PORTS, GpuReading, NodeReading, RdmaPort

ACTIVE = "ACTIVE"
"""In `state` of a port that can send, as in `4: ACTIVE`."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is published of the node, and the facts of its pods that may have changed with it."""

    reading: NodeReading
    nic_facts: dict[str, object]
    """`nics` and `nic_gbit_s` of the RDMA devices with an active port; empty without any."""


class NodeReader:
    """Reads one node. Keeps NVML open between readings, and opens it again after an error."""

    def __init__(self, load: Callable[[str], Any] = importlib.import_module, rdma_folder: Path = INFINIBAND) -> None:
        self._load = load
        self._rdma_folder = rdma_folder
        self._nvml: Any = None
        self._has_library = True

    def read(self) -> NodeState:
        """Read the node once. Never raises: what cannot be read is left out."""
        return NodeState(NodeReading(self._gpus(), read_rdma_ports(self._rdma_folder)), detect_nics(self._rdma_folder))

    def _gpus(self) -> tuple[GpuReading, ...]:
        if not self._has_library:
            return ()
        try:
            if self._nvml is None:
                nvml = self._load("pynvml")
                nvml.nvmlInit()
                self._nvml = nvml
            return read_gpus(self._nvml)
        except ImportError:
            self._has_library = False
        except Exception:  # noqa: BLE001 - drivers raise all kinds of exceptions; each only means that there is no reading
            self._nvml = None
        return ()


def read_gpus(nvml: Any) -> tuple[GpuReading, ...]:
    """Return a reading of each GPU that supports the queries, by index. `nvml` is open. Raises `NVMLError`."""
    count = min(int(nvml.nvmlDeviceGetCount()), MAX_GPUS)
    return tuple(_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(at)) for at in range(count))


def _gpu(nvml: Any, device: Any) -> GpuReading:
    memory = nvml.nvmlDeviceGetMemoryInfo(device)
    return GpuReading(
        _or_none(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100),
        int(memory.used),
        int(memory.total),
        _or_none(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000),
    )


def _or_none(nvml: Any, ask: Callable[[], float]) -> float | None:
    """Call `ask`. Returns None if the device does not support the query, as MIG slices do not report their use."""
    try:
        return float(ask())
    except nvml.NVMLError:
        return None


def read_rdma_ports(folder: Path) -> tuple[RdmaPort, ...]:
    """Return the state of every port of every RDMA device, by name and number."""
    found = []
    for port in sorted(folder.glob("*/ports/*")):
        try:
            is_up = ACTIVE in (port / "state").read_text(encoding="ascii")
            found.append(RdmaPort(port.parent.parent.name, int(port.name), is_up))
        except (OSError, ValueError):
            continue
    return tuple(found[:MAX_RDMA_PORTS])
