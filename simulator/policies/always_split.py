"""Always split: whatever can be prefilled elsewhere is, as routers do that have two fixed pools and no other way."""

from __future__ import annotations

from routing.candidates import Candidates, Gate
from routing.ledger import Pledge
from routing.placement import Placement
from routing.request import Request
from routing.router import Router


class PairsOnly:
    """Opens to pairs, and to single engines where there are no pairs."""

    pledge: Pledge | None = None

    def opens(self, candidates: Candidates, at: int) -> bool:
        """Whether another engine prefills here, if any does anywhere."""
        return not candidates.prefillers or candidates.prefillers[at] is not None


class SplittingRouter(Router):
    """The same router, which never lets an engine that decodes do a prefill."""

    def place(
        self, request: Request, *, avoid: frozenset[str], now_s: float, draw: float, gate: Gate | None = None
    ) -> Placement:
        """As `Router.place`, among pairs."""
        return super().place(request, avoid=avoid, now_s=now_s, draw=draw, gate=gate or PairsOnly())
