"""Leases on the right to assign roles: one of several gateways decides, and the others follow its assignment.

The holder writes the roles that it has decided with its lease and renews both every second; the others read them there.
A holder that is ended or stopped loses the lease when it expires, and finds another's assignment when it goes on.
`HostRoleLease` is for the workers of one host; `redis_lease.py` is for all gateways that share a Redis.
"""

from __future__ import annotations

import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct, UnsetType

LEASE_S = 5.0
"""How long a lease is valid without renewal."""

MAX_BYTES = 1 << 20
"""A longer assignment was not written by a gateway."""

FILE_NAME = "roles"


class RoleAssignment(Struct, frozen=True):
    """Roles by engine name, and the id of the gateway that decided them."""

    who: str
    until_s: float | UnsetType = UNSET
    """When the lease expires, by the machine's monotonic clock; unset in Redis, which expires keys itself."""
    roles: dict[str, str] = {}


class RoleLease(ABC):
    """The lease as one gateway sees it."""

    def __init__(self, who: str, clock: Callable[[], float]) -> None:
        """`who`: a random id of this gateway. `clock` returns seconds."""
        self._who = who
        self._clock = clock
        self._ours_until_s = 0.0

    @property
    def is_held(self) -> bool:
        """Whether this gateway holds the lease."""
        return self._clock() < self._ours_until_s

    async def propose(self, roles: Mapping[str, str]) -> Mapping[str, str]:
        """Propose these roles and return those in force: the holder's, or the proposed ones where this gateway holds
        the lease or its holder cannot be found out.
        """
        stored = await self.exchange(roles)
        return roles if stored is None else stored

    async def exchange(self, roles: Mapping[str, str]) -> Mapping[str, str] | None:
        """Propose these roles and return those that are stored then; None where that is not known."""
        expires_s = self._clock() + LEASE_S
        stored = await self._propose(roles, expires_s)
        if stored is None:
            return None
        self._ours_until_s = expires_s if stored.who == self._who else 0.0
        return stored.roles

    @abstractmethod
    async def _propose(self, roles: Mapping[str, str], expires_s: float) -> RoleAssignment | None:
        """Store these roles with a lease until `expires_s`, unless another gateway holds it. Returns what is stored
        then; None where that is not known.
        """


class HostRoleLease(RoleLease):
    """A lease among the workers of one host: a file in their supervisor's run folder."""

    def __init__(self, folder: Path, who: str, clock: Callable[[], float]) -> None:
        """`clock`: the monotonic one, which all processes of a machine share."""
        super().__init__(who, clock)
        self._path = folder / f"{FILE_NAME}.json"
        self._lock = folder / f"{FILE_NAME}.lock"

    async def _propose(self, roles: Mapping[str, str], expires_s: float) -> RoleAssignment | None:
        try:
            with self._locked() as is_locked:
                return self._read_or_write(roles, expires_s) if is_locked else None
        except OSError:  # The folder is gone: all keep the roles that they know.
            self._ours_until_s = 0.0
            return None

    def _read_or_write(self, roles: Mapping[str, str], expires_s: float) -> RoleAssignment:
        stored = self._read()
        if stored is not None and stored.who != self._who:
            until_s = stored.until_s
            if until_s is not UNSET and expires_s - LEASE_S < until_s <= expires_s:
                return stored
        written = RoleAssignment(self._who, expires_s, dict(roles))
        path = self._path.with_suffix(f".{self._who}")
        path.write_bytes(msgspec.json.encode(written))
        path.replace(self._path)
        return written

    def _read(self) -> RoleAssignment | None:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=RoleAssignment)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Yields whether the lock was free; never waits for it, since the next look is a second later."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)
