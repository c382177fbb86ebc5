"""What this machine is: its GPUs, its network, and where its labels place it.

GPUs are read from NVIDIA's management library, else from torch. `nvml` is the module `pynvml` of the package
nvidia-ml-py (extra `agent`) or one of its shape: functions named nvmlDevice... that raise `NVMLError`. All GPUs of a
node are taken to be alike; the first represents them.
"""

from __future__ import annotations

import importlib
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLOCK_MEM = 2
"""NVML_CLOCK_MEM."""


MAX_NVLINKS = 18


NVLINK_GB_S = {1: 20, 2: 25, 3: 25, 4: 25, 5: 50, 6: 50, 7: 50}
"""GB/s of one link and direction by nvmlDeviceGetNvLinkVersion, from NVIDIA (Hopper: 18 links, 450 GB/s)."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Flat facts of the machine's GPUs, and a text that names their source or the reason for having none."""

    facts: dict[str, object]
    source: str


def detect_gpus(load: Callable[[str], Any] = importlib.import_module) -> GpuFacts:
    """Query NVML, then torch. Never raises: without GPUs the facts are `gpu: none` and `gpus: 0`."""
    whys = []
    for name, ask in (("pynvml", facts_from_nvml), ("torch", facts_from_torch)):
        try:
            raw_facts = ask(load(name))
        except Exception as error:  # noqa: BLE001 - drivers raise all kinds of exceptions; each only means that this source has no facts
            whys.append(f"{name}: {str(error) or type(error).__name__}")
            continue
        if raw_facts:
            return GpuFacts(raw_facts, f"{raw_facts['gpus']} x {raw_facts['gpu']}, told by {name}")
        whys.append(f"{name}: no device")
    return GpuFacts({"gpu": "none", "gpus": 0}, f"no GPU here ({'; '.join(whys)})")


def facts_from_nvml(nvml: Any) -> dict[str, object]:
    """Return flat facts, empty if the library sees no device. Raises `NVMLError` if there is no driver."""
    nvml.nvmlInit()
    try:
        count = nvml.nvmlDeviceGetCount()
        return {"gpus": count, **_device(nvml, nvml.nvmlDeviceGetHandleByIndex(0))} if count else {}
    finally:
        nvml.nvmlShutdown()


def _device(nvml: Any, device: Any) -> dict[str, object]:
    name = nvml.nvmlDeviceGetName(device)
    raw_facts = {
        "gpu": name.decode() if isinstance(name, bytes) else name,  # bytes before version 11 of the package
        "gpu_memory_bytes": nvml.nvmlDeviceGetMemoryInfo(device).total,
        "gpu_bandwidth_gb_s": _or_none(nvml, lambda: _bandwidth_gb_s(nvml, device)),
        "nvlink_gb_s": _or_none(nvml, lambda: _nvlink_gb_s(nvml, device)),
    }
    return {word: value for word, value in raw_facts.items() if value is not None}


def _or_none(nvml: Any, ask: Callable[[], int]) -> int | None:
    """Call `ask`. Returns None if the device does not support the query, as MIG slices and old devices may not."""
    try:
        return ask()
    except nvml.NVMLError:
        return None


def _bandwidth_gb_s(nvml: Any, device: Any) -> int:
    """Bus width in bits x memory clock in MHz x 2 (double data rate): 5120 x 2619 is an H100's 3,352 GB/s."""
    bits = int(nvml.nvmlDeviceGetMemoryBusWidth(device))
    mhz = int(nvml.nvmlDeviceGetMaxClockInfo(device, CLOCK_MEM))
    return round(bits / 8 * mhz * 2 / 1000)


def _nvlink_gb_s(nvml: Any, device: Any) -> int:
    """Return GB/s in one direction over all links that are up; 0 without links."""
    total = 0
    for link in range(MAX_NVLINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(device, link):
                total += NVLINK_GB_S.get(nvml.nvmlDeviceGetNvLinkVersion(device, link), 25)
        except nvml.NVMLError:
            break  # there are no more links
    return total


def facts_from_torch(torch: Any) -> dict[str, object]:
    """Return flat facts of the devices of `torch.cuda` (CUDA or ROCm), empty if there are none."""
    if not torch.cuda.is_available():
        return {}
    device = torch.cuda.get_device_properties(0)
    return {"gpus": torch.cuda.device_count(), "gpu": device.name, "gpu_memory_bytes": device.total_memory}


FACT_LABELS = {
    "topology.kubernetes.io/region": "region",
    "topology.kubernetes.io/zone": "zone",
    "topology.kubernetes.io/rack": "rack",
    "kubernetes.io/hostname": "host",
    "llm-d.ai/role": "role",
    "pod-template-hash": "revision",
    "controller-revision-hash": "revision",
    "hearth/prompts": "prompts",
}
"""Labels that are facts. `topology.kubernetes.io/rack` is a common label, not one of Kubernetes itself."""


_LABEL = re.compile(r'^(\S+?)="(.*)"$', re.MULTILINE)


def facts_from_labels(path: Path) -> dict[str, object]:
    """Return facts from a label file as the downward API writes it, one `name="value"` a line. Raises OSError."""
    found = _LABEL.findall(path.read_text(encoding="utf-8"))
    return {FACT_LABELS[name]: value for name, value in found if name in FACT_LABELS and value}


INFINIBAND = Path("/sys/class/infiniband")
"""Where Linux lists RDMA devices, RoCE included."""


def detect_nics(folder: Path = INFINIBAND) -> dict[str, object]:
    """Return the RDMA devices that have an active port and their total Gbit/s; empty if there are none."""
    rates = {device.name: _gbit_s(device) for device in sorted(folder.glob("*"))}
    up = {name: rate for name, rate in rates.items() if rate}
    return {"nics": list(up), "nic_gbit_s": sum(up.values())} if up else {}


def _gbit_s(device: Path) -> int:
    """Return the rate of all active ports. The kernel writes `400 Gb/sec (4X NDR)` and `4: ACTIVE`."""
    total = 0.0
    for port in (device / "ports").glob("*"):
        try:
            if "ACTIVE" in (port / "state").read_text(encoding="ascii"):
                total += float((port / "rate").read_text(encoding="ascii").split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return int(total)


def own_address() -> str:
    """Return the address by which other machines most likely reach this one; loopback if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        try:
            # Connecting a datagram socket sends nothing; the kernel only chooses a route, and with it a source address.
            probe_socket.connect(("192.0.2.1", 9))
            return str(probe_socket.getsockname()[0])
        except OSError:
            return "127.0.0.1"
