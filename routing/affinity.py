"""Bounded maps from sessions, stored responses and adapters to the engine that served them last. Evict the oldest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
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


class LastSlots:
    """Which engine's slot a name was last on."""

    def __init__(self, max_entries: int) -> None:
        self._slots: RecentMap[int, int] = RecentMap(max_entries)

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, name: str, slot: int) -> None:
        self._slots.put(hashed_id(name), slot)

    def put_hashed(self, key: int, slot: int) -> None:
        """Write an entry for an id that another replica has hashed."""
        self._slots.put(key, slot)

    def get(self, name: str) -> int | None:
        return self._slots.get(hashed_id(name))

    def remove_value(self, slot: int) -> None:
        """Forget every name that was on a slot."""
        self._slots.remove_value(slot)
