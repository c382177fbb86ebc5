"""What other gateways have on our engines, as they tell it: the ledger holds it like our own, lookers want it apart.

Summed at the moment of a look; costs nothing before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from routing.ledger import Ledger
from routing.replica_state import Hearing


class Load(NamedTuple):
    """What is on an engine."""

    running: int = 0
    prefill_tokens: float = 0.0
    kv_tokens: float = 0.0


NOTHING = Load()

ByEngine = Mapping[int, Load]
"""By slot; none where there is nothing."""


@dataclass(slots=True)
class Others:
    """Whoever speaks to us; nobody where `hearing` is None."""

    hearing: Hearing | None = None

    def load(self) -> ByEngine:
        """What they have on engines."""
        found = self.hearing.theirs() if self.hearing is not None else {}
        return {slot: Load(*held) for slot, held in found.items()}


def own_load(ledger: Ledger, slot: int, theirs: ByEngine) -> Load:
    """What we ourselves have put on an engine."""
    held = theirs.get(slot, NOTHING)
    return Load(
        max(0, ledger.running[slot] - held.running),
        max(0.0, ledger.prefill_tokens[slot] - held.prefill_tokens),
        max(0.0, ledger.kv_tokens[slot] - held.kv_tokens),
    )
