"""Where a port listens, and what it shows whoever comes in by TLS."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Address:
    """Where a port listens. Port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the listener's certificate (with its chain) and key."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class MutualTlsFiles(TlsFiles):
    """The same for a port that may ask its clients for certificates."""

    client_ca: Path | None = None
    """Certificates of the authorities whose clients are accepted; None: a client needs no certificate."""
