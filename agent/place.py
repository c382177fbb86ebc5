"""Where this machine stands and what its network is: labels of the downward API, RDMA devices, address."""

from __future__ import annotations

import re
import socket
from pathlib import Path

LABELS = {
    "topology.kubernetes.io/region": "region",
    "topology.kubernetes.io/zone": "zone",
    "topology.kubernetes.io/rack": "rack",
    "kubernetes.io/hostname": "host",
    "llm-d.ai/role": "role",
    "pod-template-hash": "revision",
    "controller-revision-hash": "revision",
    "hearth/prompts": "prompts",
}
"""Labels that mean facts. `topology.kubernetes.io/rack` is no label of Kubernetes' own, but a usual one."""

_LABEL = re.compile(r'^(\S+?)="(.*)"$', re.MULTILINE)


def read_labels(path: Path) -> dict[str, object]:
    """Facts from a file of labels as the downward API writes it, `name="value"` a line. Raises OSError."""
    found = _LABEL.findall(path.read_text(encoding="utf-8"))
    return {LABELS[name]: value for name, value in found if name in LABELS and value}


def look_for_nics(folder: Path = Path("/sys/class/infiniband")) -> dict[str, object]:
    """RDMA devices with a port that is up, and what they carry together; empty where there are none."""
    rates = {device.name: _gbit_s(device) for device in sorted(folder.glob("*"))}
    up = {name: rate for name, rate in rates.items() if rate}
    return {"nics": list(up), "nic_gbit_s": sum(up.values())} if up else {}


def _gbit_s(device: Path) -> int:
    """Of all its ports that are up. The kernel writes `400 Gb/sec (4X NDR)` and `4: ACTIVE`."""
    total = 0.0
    for port in (device / "ports").glob("*"):
        try:
            if "ACTIVE" in (port / "state").read_text(encoding="ascii"):
                total += float((port / "rate").read_text(encoding="ascii").split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return int(total)


def own_address() -> str:
    """The address by which others most likely reach this machine; loopback where it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            # Connecting a datagram socket sends nothing; it only has the kernel choose a way, and with it an address.
            asking.connect(("192.0.2.1", 9))
            return str(asking.getsockname()[0])
        except OSError:
            return "127.0.0.1"
