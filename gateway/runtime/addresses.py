"""Addresses that ports listen on, and the files of their TLS certificates."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port to listen on. Port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the address."""
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
    """PEM files of a listener that may require client certificates."""

    client_ca: Path | None = None
    """Certificates of the authorities whose clients are accepted; None: a client needs no certificate."""
