"""Two pods that meet, for the tests of connectors."""

from typing import Any

from routing.connectors.shape import KvTransferSession, TransferPeer
from routing.facts import PodFacts

KEY = "0123456789abcdef0123456789abcdef"


def meeting(prefill: PodFacts | None = None, decode: PodFacts | None = None, **more: Any) -> KvTransferSession:
    """One hand-over under a request id and a key that are known."""
    engine_id = more.pop("engine_id", "")
    return KvTransferSession(
        "r-1", KEY, TransferPeer(prefill or PodFacts(), 0, engine_id), TransferPeer(decode or PodFacts()), **more
    )
