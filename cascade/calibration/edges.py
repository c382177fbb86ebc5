"""From a level on the walk to thresholds on signals: what is kept wholly, and what is kept by lot just below."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from cascade.calibration.examples import Example
from cascade.calibration.walk import Levels
from cascade.ladder_file import ANY_BUCKET


@dataclass(frozen=True, slots=True)
class Edge:
    """Kept from `threshold` on; of those `at` one signal below it this share."""

    threshold: float = inf
    at: float | None = None
    share: float = 0.0


NEVER = Edge()


def kept_from(
    examples: Sequence[Example], order: Sequence[Levels], level: float, pools: Collection[str]
) -> dict[tuple[int, str], Edge]:
    """By rung and pool: the bucket itself where it is one, else the one for any."""
    seen: dict[tuple[int, str], dict[float, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for example, levels in zip(examples, order, strict=True):
        pool = example.bucket if example.bucket in pools else ANY_BUCKET
        for rung, own in enumerate(levels):
            if own is not None:
                seen[rung, pool][example.signals[rung]].append(own >= level)
    return {place: _edge(kept) for place, kept in seen.items()}


def _edge(kept: dict[float, list[bool]]) -> Edge:
    threshold = inf
    for signal in sorted(kept, reverse=True):
        if not all(kept[signal]):
            share = sum(kept[signal]) / len(kept[signal])
            return Edge(threshold, signal, share) if share else Edge(threshold)
        threshold = signal
    return Edge(threshold)
