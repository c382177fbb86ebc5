"""A gate for fleets whose engines keep to their roles: whoever is there to decode prefills nothing that another can.

What a prefill does to those who decode beside it is a second or so to each of them; to what they were promised it may
be everything. Where promises are known, admission's own gate weighs that, and this one is not asked.
"""

from __future__ import annotations

from routing.candidates import Candidates
from routing.ledger import Pledge


class PairsOnly:
    """Opens to pairs, and to single engines where there are no pairs."""

    pledge: Pledge | None = None

    def opens(self, candidates: Candidates, at: int) -> bool:
        """Whether another engine prefills here, if any does anywhere."""
        return not candidates.prefillers or candidates.prefillers[at] is not None
