"""One ladder as it is served: its rungs, how its answers are held back, and what is spent on staying true."""

from __future__ import annotations

from dataclasses import dataclass, field

from cascade.ladder import Ladder
from gateway.cascades.judge import HoldBack
from gateway.config.ladder import ShadowEntry


@dataclass(frozen=True, slots=True)
class Served:
    """A value."""

    ladder: Ladder
    hold_back: HoldBack
    shadow: ShadowEntry = field(default_factory=ShadowEntry)
    is_start_set: bool = False
    """Whether the configuration says where requests begin without a calibration."""
