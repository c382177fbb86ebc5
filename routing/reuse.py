"""What it costs to displace: how much of what full caches are about to forget is still asked for.

An engine forgets what was used longest ago, so of all hits those near that end are lost if it forgets a little sooner.
How dense they are there is told by those on the older half of what it holds. Learned of all engines together, since
they share the traffic. Sizes are in the unit of `Prompt.size`; a turn stands for time.
"""

from __future__ import annotations

from math import log

MEMORY = 500.0
"""Prompts after which the old has faded."""

KEPT = 1 - 1 / MEMORY

OLDER_HALF = log(2)
"""Hits come about as often from a minute ago to two as from two to four: by the logarithm of their age."""


class Reuse:
    """One per index, told of each prompt as it is put on an engine."""

    __slots__ = ("_computed", "_late", "share")

    def __init__(self) -> None:
        self.share = 0.0
        """How much must be computed again, in the end, for each token that is displaced."""
        self._late = 0.0
        self._computed = 0.0

    def observe(self, computed: float, late: float) -> None:
        """A prompt was put on an engine: so much of it is computed anew, so much was last used in the older half of the
        time that the engine looks back on; none where the engine has room, for then nothing is displaced.
        """
        self._late = self._late * KEPT + late
        self._computed = self._computed * KEPT + computed
        self.share = self._late / (OLDER_HALF * self._computed) if self._computed else 0.0
