"""File descriptors of a process: the limit, and how it is divided between connections.

A process without a free descriptor accepts no connection on any port: its health checks fail, and its pods appear
unreachable. So clients and pods get shares, and the rest is reserved for ports, logs, probes and health checks.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

MIN_RESERVED = 96
MAX_RESERVED = 1024
"""Bounds of the reserved descriptors, which are a quarter of all."""

MAX_OVERFLOW = 256


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """Connections that a process may have at one time."""

    clients: int
    overflow: int
    """Further clients that get an error response before they are closed."""
    pods: int


def divide_descriptors(descriptors: int, max_connections: int) -> DescriptorShares:
    """Divide descriptors: clients get half of what is not reserved, at most `max_connections`, pods the rest."""
    free = max(3, descriptors - min(MAX_RESERVED, max(MIN_RESERVED, descriptors // 4)))
    overflow = max(1, min(MAX_OVERFLOW, free // 16))
    clients = min(max_connections, max(1, (free - overflow) // 2))
    return DescriptorShares(clients, overflow, max(1, free - overflow - clients))


def descriptors_wanted(max_connections: int) -> int:
    """Return the descriptors needed for `max_connections` clients, each with a connection to a pod."""
    return 2 * max_connections + MAX_OVERFLOW + MAX_RESERVED


def descriptors_allowed() -> int:
    """Return the limit of this process; `hearth serve` has raised the soft limit to the hard one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
