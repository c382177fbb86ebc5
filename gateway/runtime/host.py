"""Identity of this process among those of its host, and the paths that they share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One process of those that a supervisor has started. The defaults describe a gateway without siblings."""

    number: int = 0
    """1 for the first worker, 0 for a gateway without siblings."""
    processes: int = 1
    """Number of workers that share the host and its traffic port."""
    folder: Path | None = None
    """Private runtime directory of the supervisor and its children."""
    kv_index_socket: Path | None = None
    """Socket of the host's index process, if there is one."""

    def lock_path(self, name: str) -> Path | None:
        """Return the lock file for writing to a shared target; None if no other process writes."""
        return self.folder / f"{name}.lock" if self.folder else None
