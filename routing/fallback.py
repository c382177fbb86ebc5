"""Why a request that could have been a pair's, or should have been, went another way. Counted, and on its receipt."""

from __future__ import annotations

from enum import StrEnum


class Fallback(StrEnum):
    """A closed list."""

    NO_PREFILL_POD = "no_prefill_pod"
    """No engine that prefills is ready: a decode engine did it all."""
    NO_DECODE_POD = "no_decode_pod"
    """No engine that decodes is ready: one that is there for prefill answered."""
    PREFILL_FAILED = "prefill_failed"
    """The prefill pod could not be reached, refused, died or broke."""
    PREFILL_SLOW = "prefill_slow"
    """It took far longer than was foretold."""
    UNFIT_PARAMS = "unfit_params"
    """What it answered could not be passed on to another engine."""
    TRANSFER_STALLED = "transfer_stalled"
    """The KV did not come in time."""
    TRANSFER_FAILED = "transfer_failed"
    """The decode pod failed with the KV that it was to fetch."""
    DECODE_FAILED = "decode_failed"
    """The decode pod was lost before its first token."""
