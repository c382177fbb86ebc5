"""What one gateway knows of the demand for engines: cumulative sums by model and tier, stocks, and recent rejections.

Sums only grow, so that a lost update costs nothing: readers use differences. Prompts do not occur, only their sizes; a
rejected request is known by a hash. Exchanged as MessagePack; later versions may append fields.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

MAX_TIERS = 512
"""Models times tiers of one gateway's figures."""

MAX_RESIDENCIES = 8
"""Sets of regions by tier whose work is counted apart."""

MAX_REJECTED = 256
"""Rejections in one message; further ones of the same second are not counted."""


WorkSums = tuple[float, float, float]
"""Requests, uncached prompt tokens, output tokens."""


NO_SUMS: WorkSums = (0.0, 0.0, 0.0)


class TierFigures(Struct, array_like=True, gc=False):
    """One tier's requests for one model at one gateway."""

    model: str
    tier: str
    requests: float = 0.0
    """Placed for the first time, since the gateway's start; so are all sums."""
    prefill_tokens: float = 0.0
    """Uncached, weighted by their context (`routing.cost.prefill_work`)."""
    prefill_squares: float = 0.0
    """Of the uncached tokens of each request."""
    output_tokens: float = 0.0
    """Expected, at their placement."""
    context_tokens: float = 0.0
    """Of answered requests: prompt and half of the answer."""
    answered: float = 0.0
    finished: float = 0.0
    """Ended with a verdict about their objective."""
    met: float = 0.0
    running: float = 0.0
    """Stock, as are all below: sequences that are placed and have not ended."""
    queued_requests: float = 0.0
    queued_prefill_tokens: float = 0.0
    queued_output_tokens: float = 0.0
    oldest_queued_s: float = 0.0
    resident: dict[str, WorkSums] = {}
    """Part of the placed work that residency bounds, by regions: sorted, with commas between them."""


class RejectedFigures(Struct, array_like=True, frozen=True, gc=False):
    """One rejected request."""

    fingerprint: int
    tenant: str
    tier: str
    model: str
    prefill_tokens: float
    output_tokens: float
    age_s: float
    is_without_pod: bool
    """Rejected because the model had no pod."""


class GatewayFigures(Struct, array_like=True, tag=1, gc=False):
    """All figures of one gateway."""

    tiers: list[TierFigures] = []
    held: dict[str, int] = {}
    """Requests that wait for a pod, by model."""
    rejected: list[RejectedFigures] = []
    """Since the last message."""
    served: list[int] = []
    """Fingerprints of requests that were rejected before and have been placed since the last message."""
    is_leaving: bool = False
    """The gateway drains: it will be missing and need not be waited for."""
    tenants: dict[str, tuple[float, float, float]] = {}
    """Admitted requests, uncached prompt tokens and output tokens per second, of tenants with rejected requests."""
    started_s: float = 0.0
    """Unix time of the gateway's start: the oldest decides."""
    followed: list[tuple[str, str, str]] = []
    """Model, pool and role of the pools whose figures an autoscaler reads here."""


class PoolFigure(Struct, array_like=True, frozen=True, gc=False):
    """A decision about one pool, as gateways exchange it."""

    model: str
    pool: str
    role: str
    engines: int
    unbounded: int
    present: int
    reason: str
    is_active: bool
    tiers: dict[str, float] = {}
    terms: list[tuple[str, float, str]] = []
    price_per_hour: float = 0.0


class SpillFigure(Struct, array_like=True, frozen=True, gc=False):
    """How much of a model's work leaves the pools of the lowest rank, and why; see `supply.preference`."""

    share: float
    reason: str
    home: list[str] = []
    beyond: list[str] = []
    leaving: list[str] = []
    missed: list[tuple[str, float]] = []


class SplitFigure(Struct, array_like=True, frozen=True, gc=False):
    """What separate prefill and decode engines would cost beside engines that do both; see `supply.split_advice`."""

    verdict: str
    colocated_pool: str
    prefill_pool: str
    decode_pool: str
    """The pools whose kinds of engine are compared."""
    colocated_engines: int
    prefill_engines: int
    decode_engines: int
    colocated_per_hour: float
    split_per_hour: float
    colocated_per_million: float
    split_per_million: float
    prefill_s: float
    decode_s: float
    price_ratio: float
    transfer_s: float


class FleetFigures(Struct, array_like=True, tag=2, gc=False):
    """The decision of the gateway that decides, for all others to answer with."""

    number: int
    """Grows with each decision of that gateway."""
    pools: list[PoolFigure] = []
    unknown: dict[str, str] = {}
    """Models whose figures hold, and why."""
    short: dict[str, list[str]] = {}
    """Tiers whose objective the figures cannot keep, by model."""
    state: bytes = b""
    """What the next decision needs; empty where it has not been sent this time."""
    spill: dict[str, SpillFigure] = {}
    """By model; only models with pools of several ranks."""
    split: dict[str, SplitFigure] = {}
    """By model."""


Message = GatewayFigures | FleetFigures

TIER_FIGURES = tuple(name for name in TierFigures.__struct_fields__ if name not in {"model", "tier", "resident"})

MAX_FIGURE = 1e30
"""Above any sum."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Encode a message for `SupplyUpdate`."""
    return _ENCODER.encode(message)


def decode(payload: bytes) -> Message | None:
    """Decode the payload of a `SupplyUpdate`; None where it cannot be read, or has figures that cannot be."""
    try:
        message = _DECODER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return message if isinstance(message, FleetFigures) or _is_sane(message) else None


def _is_sane(figures: GatewayFigures) -> bool:
    """Return whether all figures are finite and not negative: others would spread into each decision."""
    return (
        0 <= figures.started_s <= MAX_FIGURE
        and all(0 <= getattr(each, name) <= MAX_FIGURE for each in figures.tiers for name in TIER_FIGURES)
        and all(
            len(each.resident) <= MAX_RESIDENCIES
            and all(0 <= part <= MAX_FIGURE for work in each.resident.values() for part in work)
            for each in figures.tiers
        )
        and all(
            0 <= part <= MAX_FIGURE for each in figures.rejected for part in (each.prefill_tokens, each.output_tokens)
        )
        and all(0 <= count <= MAX_FIGURE for count in figures.held.values())
        and all(0 <= part <= MAX_FIGURE for work in figures.tenants.values() for part in work)
    )
