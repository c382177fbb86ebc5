"""Two pods that meet, for the tests of connectors."""

from typing import Any

from routing.connectors.shape import Meeting, Side
from routing.facts import PodFacts

KEY = "0123456789abcdef0123456789abcdef"


def meeting(prefill: PodFacts | None = None, decode: PodFacts | None = None, **more: Any) -> Meeting:
    """One hand-over under a request id and a key that are known."""
    engine_id = more.pop("engine_id", "")
    return Meeting("r-1", KEY, Side(prefill or PodFacts(), 0, engine_id), Side(decode or PodFacts()), **more)
