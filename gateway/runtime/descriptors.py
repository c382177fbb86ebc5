"""File descriptors of a process: how many it may have, and how they are shared out among connections.

A process without a free descriptor takes no connection on any port: its health checks fail, and its pods seem to be
unreachable. So clients and pods get shares, and the rest is kept for ports, logs, probes and checks.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

LEAST_KEPT = 96
MOST_KEPT = 1024
"""Descriptors for all that is neither a client's connection nor one to a pod for a client: a quarter of all, within
these."""

MOST_OVERFLOW = 256


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """Connections that a process may have at one time."""

    clients: int
    overflow: int
    """Clients beyond these that are told so before they are closed."""
    pods: int


def share_out(descriptors: int, max_connections: int) -> DescriptorShares:
    """Divide descriptors: clients get half of what is not kept, but no more than `max_connections`, pods the rest."""
    free = max(3, descriptors - min(MOST_KEPT, max(LEAST_KEPT, descriptors // 4)))
    overflow = max(1, min(MOST_OVERFLOW, free // 16))
    clients = min(max_connections, max(1, (free - overflow) // 2))
    return DescriptorShares(clients, overflow, max(1, free - overflow - clients))


def descriptors_wanted(max_connections: int) -> int:
    """How many let so many clients in, each with a connection to a pod."""
    return 2 * max_connections + MOST_OVERFLOW + MOST_KEPT


def descriptors_allowed() -> int:
    """How many this process may have; `hearth serve` has raised the soft limit as far as the hard one allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
