"""How a simulated pod is wired to others: the words of vLLM's `--kv-transfer-config`, and what its network is like."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from simulator.link import Link


class KvRole(StrEnum):
    """What a pod does with KV, in vLLM's words."""

    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"
    BOTH = "kv_both"


ROLES = {"prefill": KvRole.PRODUCER, "decode": KvRole.CONSUMER, "either": KvRole.BOTH}
"""The roles by the names that a gateway has for them."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """One pod's connector. Times in engine seconds."""

    connector: str = "NixlConnector"
    role: KvRole = KvRole.BOTH
    link: Link = field(default_factory=Link)
    lease_s: float = 30.0
    """How long blocks are kept for a pod that does not fetch them: NIXL's `kv_lease_duration`."""
    handshake_s: float = 5.0
    """How long a pod that cannot be reached is tried."""
    recomputes: bool = False
    """`kv_load_failure_policy: recompute`; else a request whose KV does not come fails."""
    folder: Path | None = None
    """The folder that ExampleConnector's pods share."""
    side_port: int = 0
    bootstrap_port: int = 0
    """Where pods ask each other for KV, and where Mooncake's tell who they are; 0 takes any."""

    def __post_init__(self) -> None:
        if min(self.lease_s, self.handshake_s) <= 0:
            raise ValueError("lease_s, handshake_s: must be > 0")
        if self.connector == "ExampleConnector" and self.folder is None:
            raise ValueError("shelf: ExampleConnector needs the folder that its pods share")
