"""One of a host's workers decides roles, and its siblings follow: through one file in their supervisor's run folder.

The same lease and news as in Redis (`gateway/roles/shared.py`), by a clock that all processes of a machine share. Who
is ended or stopped loses the lease when it has run out, and finds another's word there when it goes on.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from gateway.roles.setup import LEASE_S, MOST_BYTES

NAME = "roles"


class Leased(Struct, frozen=True):
    """What one worker has decided, and until when nobody else may. `until_s` is of the machine's monotonic clock."""

    who: str
    until_s: float
    roles: dict[str, str] = {}


class RolesOnHost:
    """One per worker."""

    def __init__(self, folder: Path, who: str, clock: Callable[[], float]) -> None:
        """`clock`: the monotonic one, which siblings read alike."""
        self._path = folder / f"{NAME}.json"
        self._lock = folder / f"{NAME}.lock"
        self._who = who
        self._clock = clock
        self._ours_until_s = 0.0

    @property
    def decides(self) -> bool:
        """Whether the lease is ours."""
        return self._clock() < self._ours_until_s

    async def exchange(self, roles: Mapping[str, str]) -> Mapping[str, str]:
        """Say what we would have, and hear what is to be: our own word where the lease is ours or nobody's, another's
        where it is not. Where the folder is gone all keep what they know.
        """
        try:
            with self._alone() as is_alone:
                return self._said(roles) if is_alone else roles
        except OSError:
            self._ours_until_s = 0.0
            return roles

    def _said(self, roles: Mapping[str, str]) -> Mapping[str, str]:
        said, now_s = self._read(), self._clock()
        if said is not None and said.who != self._who and now_s < said.until_s <= now_s + LEASE_S:
            self._ours_until_s = 0.0
            return said.roles
        word = Leased(self._who, now_s + LEASE_S, dict(roles))
        written = self._path.with_suffix(f".{self._who}")
        written.write_bytes(msgspec.json.encode(word))
        written.replace(self._path)
        self._ours_until_s = word.until_s
        return roles

    def _read(self) -> Leased | None:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(MOST_BYTES), type=Leased)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no sibling reads or writes just now. Nobody waits: a second later it is asked again."""
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
