"""The scorers by name, and the routings composed of them. A new scorer is one file and its class in `SCORERS`."""

from __future__ import annotations

from routing.candidates import Scorer
from scorers.copies import Copies
from scorers.duty import Duty
from scorers.interference import Interference
from scorers.kv_room import KvRoom
from scorers.least_loaded import LeastLoaded
from scorers.lora import Lora
from scorers.prefill import Prefill
from scorers.session import Session
from scorers.slow_start import SlowStart
from scorers.stall import Stall
from scorers.suited import Suited
from scorers.turn import Turn

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
