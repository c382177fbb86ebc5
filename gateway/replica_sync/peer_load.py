"""The load that peer gateways have put on our engines, as their updates report it.

The ledger includes it; metrics and the admin API show it separately. It is summed when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from routing.ledger import Ledger
from routing.replica_state import ReplicaState


class SlotLoad(NamedTuple):
    """The load of an engine."""

    running: int = 0
    prefill_tokens: float = 0.0
    kv_tokens: float = 0.0


NO_LOAD = SlotLoad()

LoadBySlot = Mapping[int, SlotLoad]
"""Load by engine slot; slots without load are absent."""


@dataclass(slots=True)
class PeerLoad:
    """The load of all peers; none where `hearing` is None."""

    applier: ReplicaState | None = None

    def load(self) -> LoadBySlot:
        """Load of peers by engine slot."""
        loads = self.applier.remote_load() if self.applier is not None else {}
        return {slot: SlotLoad(*load) for slot, load in loads.items()}


def own_load(ledger: Ledger, slot: int, theirs: LoadBySlot) -> SlotLoad:
    """The load that this gateway has put on an engine. `theirs`: the load of peers."""
    held = theirs.get(slot, NO_LOAD)
    return SlotLoad(
        max(0, ledger.running[slot] - held.running),
        max(0.0, ledger.prefill_tokens[slot] - held.prefill_tokens),
        max(0.0, ledger.kv_tokens[slot] - held.kv_tokens),
    )
