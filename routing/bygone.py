"""The past of other routers, heard by one who has just come: what engines hold and how fast they are.

Nothing of what was open then is charged: that is stated by those who still live.
"""

from __future__ import annotations

from collections.abc import Iterable

from routing.affinity import LastSeen, Whereabouts
from routing.cost import CostBook
from routing.fleet import Fleet
from routing.hearing import Hearing, Peer
from routing.ledger import Ledger
from routing.news import News, Voice
from routing.tokens import ExactCounter, TokenCounter
from routing.warmth import WarmIndex


class Bygone:
    """Takes old batches as `Hearing` takes new ones, with a ledger of its own that is thrown away."""

    def __init__(self, peer: Peer) -> None:
        self.fleet: Fleet = peer.fleet
        self.index: WarmIndex = peer.index
        self.costs: CostBook = peer.costs
        self.sessions: Whereabouts = peer.sessions
        self.responses: Whereabouts = peer.responses
        self.adapters: LastSeen[tuple[str, int], int] = peer.adapters
        self.voice: Voice | None = None
        self.ledger = Ledger()
        self._counter = peer.counter
        self._hearing = Hearing(self)
        self._names: set[int] = set()

    @property
    def heard(self) -> int:
        """Words taken."""
        return self._hearing.heard

    def counter(self, model: str) -> TokenCounter | ExactCounter:
        """The counter of the router that has just come."""
        return self._counter(model)

    def recycle(self, slot: int) -> None:
        """Slots are the router's affair."""

    def hear(self, name: int, number: int, news: Iterable[News]) -> None:
        """Take an old batch; those of an origin in their order."""
        self.ledger.reach(self.fleet.slot_count)
        self._names.add(name)
        self._hearing.hear(name, number, news, 0.0)

    def close(self) -> None:
        """The past has ended: what was never seen to begin is not believed to be anywhere."""
        for name in self._names:
            self._hearing.forget(name, 0.0)
