"""Counters of engines summed by pool and role: what engines count themselves, from one scrape to the next.

An engine's first reading is where its part begins: what it counted before is not ours to show at once. A counter that
falls has restarted at zero. Engines that leave take nothing away. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

Key = tuple[str, str, str]
"""Name of the counter (`gateway/fleet/scrape.py`), pool and role."""

Reading = Mapping[str, float]


class EngineCounters:
    """One per gateway."""

    def __init__(self) -> None:
        self.sums: dict[Key, float] = {}
        self._last: dict[str, Reading] = {}
        """The last reading by name of the engine."""

    def observe(self, engine: str, pool: str, role: str, reading: Reading) -> None:
        """Add what an engine has counted since its last reading."""
        before = self._last.get(engine)
        self._last[engine] = reading
        for name, value in reading.items():
            added = 0.0 if before is None else value - before.get(name, 0.0)
            key = (name, pool, role)
            self.sums[key] = self.sums.get(key, 0.0) + (added if added >= 0.0 else value)

    def forget(self, url: str) -> None:
        """Drop the last readings of a pod that has left."""
        for name in [name for name in self._last if name.partition("#")[0] == url]:
            del self._last[name]
