"""Bounded maps from sessions, stored responses and adapters to the engine that served them last. Evict the oldest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from heapq import nlargest
from itertools import islice
from typing import Generic, TypeVar

from xxhash import xxh3_64_intdigest

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentMap(Generic[K, V]):
    """A mapping that keeps its `max_entries` most recently written entries."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: K, value: V) -> None:
        """Write an entry as the newest."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def get(self, key: K) -> V | None:
        """The entry, None where it was never written or is forgotten."""
        return self._entries.get(key)

    def remove_value(self, value: V) -> None:
        """Forget every entry that points to `value`."""
        for key in [key for key, held in self._entries.items() if held == value]:
            del self._entries[key]


def hashed_id(name: str) -> int:
    """Hash a session or response id, so that it can be sent to other replicas without the id itself."""
    return xxh3_64_intdigest(name.encode(errors="surrogatepass"))


FORGOTTEN_AT_ONCE = 64
"""Owners of whom entries are forgotten when all are too many, and the part of them: owners are seldom compared."""


class LastSlots:
    """Which engine's slot a name was last on. What is too much is forgotten of the owner with most names."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: dict[str | None, OrderedDict[int, int]] = {None: OrderedDict()}
        """By owner, the one written longest ago first."""
        self._owners: dict[int, str] = {}
        """Of each name that has one."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, name: str, slot: int, owner: str | None = None) -> None:
        """Write an entry as the newest of its owner."""
        self.put_hashed(hashed_id(name), slot, owner)

    def put_hashed(self, key: int, slot: int, owner: str | None = None) -> None:
        """Write an entry for an id that another replica has hashed."""
        before = self._owners.get(key)
        if before != owner:
            self._remove(before, key)
        entries = self._entries.get(owner)
        if entries is None:
            entries = self._entries[owner] = OrderedDict()
        self._count += key not in entries
        entries[key] = slot
        entries.move_to_end(key)
        if owner is not None:
            self._owners[key] = owner
        if self._count > self._max_entries:
            self._forget(owner)

    def get(self, name: str) -> int | None:
        key = hashed_id(name)
        return self._entries[self._owners.get(key)].get(key)

    def remove_value(self, slot: int) -> None:
        """Forget every name that was on a slot."""
        for owner, entries in list(self._entries.items()):
            for key in [key for key, held in entries.items() if held == slot]:
                self._remove(owner, key)

    def _forget(self, writer: str | None) -> None:
        """Forget the oldest of the owners that have most, those with half as many as the first included; of equal ones
        not of the one that has just written.
        """
        if len(self._entries) == 1:
            self._remove(None, next(iter(self._entries[None])))
            return
        fullest = nlargest(
            FORGOTTEN_AT_ONCE, self._entries.items(), key=lambda entry: (len(entry[1]), entry[0] != writer)
        )
        peak = len(fullest[0][1])
        for owner, entries in fullest:
            if 2 * len(entries) >= peak and (owner != writer or len(entries) > 1):
                for key in list(islice(entries, 1 + len(entries) // FORGOTTEN_AT_ONCE)):
                    self._remove(owner, key)

    def _remove(self, owner: str | None, key: int) -> None:
        entries = self._entries[owner]
        if entries.pop(key, None) is None:
            return
        self._count -= 1
        self._owners.pop(key, None)
        if owner is not None and not entries:
            del self._entries[owner]
