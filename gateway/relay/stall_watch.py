"""Who keeps vigil over a request that has been placed: what its engine is expected to say, and when.

Knows placements and requests; how silence is judged is `routing/stall_detection.py`.
"""

from __future__ import annotations

from gateway.relay.relay import PREFILL_ONLY, Placed
from routing.decision.placement import Placement
from routing.stall_detection import Lateness, Vigil


def vigil_over(lateness: Lateness, placement: Placed, now_s: float) -> Vigil | None:
    """A vigil over a request that is about to be sent; None where nothing was predicted of it.

    A whole generated answer says nothing until its last token, and a pair's decoding engine nothing until it has the KV
    of the other: until then their silence is no sign. They are given up where others show that the engine is.
    """
    request = placement.request
    if not isinstance(placement, Placement) or not (request.api.generates or request.api in PREFILL_ONLY):
        return None
    is_telling = placement.prefill is None and (request.stream or request.api in PREFILL_ONLY)
    expected_s = 0.0 if placement.prefill is not None else placement.predicted.ttft_s
    return lateness.vigil(
        placement.engine.name,
        request.model,
        expected_s,
        now_s,
        is_telling=is_telling,
        holds_back=request.stream and request.holds_back,
    )
