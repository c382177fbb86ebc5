"""The scorers by name, and the routings composed of them. A new scorer is one file and its class in `SCORERS`."""

from __future__ import annotations

from routing.candidates import Scorer
from scorers.constrained_decoding import ConstrainedDecoding
from scorers.decode_role import DecodeRolePenalty
from scorers.distance import Distance
from scorers.hot_prefix_replication import HotPrefixReplication
from scorers.interference import Interference
from scorers.kv_headroom import KvCacheHeadroom
from scorers.least_loaded import LeastLoaded
from scorers.lora_affinity import LoraAffinity
from scorers.prefill_stall import PrefillStallCost
from scorers.prefill_time import PrefillTime
from scorers.prompt_length import PromptLengthAffinity
from scorers.role_drain import RoleDrain
from scorers.round_robin import RoundRobin
from scorers.session_affinity import SessionAffinity
from scorers.slow_start import SlowStart
from scorers.spill import SpillPenalty
from scorers.stream_stall import StreamStall

SCORERS: tuple[type[Scorer], ...] = (
    PrefillTime,
    Interference,
    StreamStall,
    HotPrefixReplication,
    KvCacheHeadroom,
    SessionAffinity,
    LoraAffinity,
    SlowStart,
    PromptLengthAffinity,
    DecodeRolePenalty,
    PrefillStallCost,
    RoleDrain,
    ConstrainedDecoding,
    SpillPenalty,
    Distance,
    RoundRobin,
    LeastLoaded,
)


def routings() -> dict[str, tuple[Scorer, ...]]:
    """What `--routing NAME` means: the scorers whose seconds are added up."""
    return {
        "warm": (
            PrefillTime(),
            Interference(),
            StreamStall(),
            HotPrefixReplication(),
            KvCacheHeadroom(),
            SessionAffinity(),
            LoraAffinity(),
            SlowStart(),
            PromptLengthAffinity(),
            DecodeRolePenalty(),
            PrefillStallCost(),
            RoleDrain(),
            ConstrainedDecoding(),
            SpillPenalty(),
            Distance(),
        ),
        "round-robin": (RoundRobin(),),
        "least-loaded": (LeastLoaded(),),
    }
