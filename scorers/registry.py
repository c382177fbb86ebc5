"""The scorers by name, and the routings composed of them. A new scorer is one file and its class in `SCORERS`."""

from __future__ import annotations

from routing.candidates import Scorer
from scorers.decode_role import Duty
from scorers.hot_prefix_replication import Copies
from scorers.interference import Interference
from scorers.kv_headroom import KvRoom
from scorers.least_loaded import LeastLoaded
from scorers.lora_affinity import Lora
from scorers.prefill_stall import Stall
from scorers.prefill_time import Prefill
from scorers.prompt_length import Suited
from scorers.round_robin import Turn
from scorers.session_affinity import Session
from scorers.slow_start import SlowStart

SCORERS: tuple[type[Scorer], ...] = (
    Prefill,
    Interference,
    Copies,
    KvRoom,
    Session,
    Lora,
    SlowStart,
    Suited,
    Duty,
    Stall,
    Turn,
    LeastLoaded,
)


def routings() -> dict[str, tuple[Scorer, ...]]:
    """What `--routing NAME` means: the scorers whose seconds are added up."""
    return {
        "warm": (
            Prefill(),
            Interference(),
            Copies(),
            KvRoom(),
            Session(),
            Lora(),
            SlowStart(),
            Suited(),
            Duty(),
            Stall(),
        ),
        "round-robin": (Turn(),),
        "least-loaded": (LeastLoaded(),),
    }
