"""The cheapest mix of pools that carries a load: integers from real requirements, in the order of preference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class PoolOption:
    """One pool as a choice: an engine of it carries `1 / needed` of the load."""

    name: str
    needed: float
    """Engines of this pool that would carry the load alone."""
    lowest: int
    highest: int
    rank: int = 0
    price_per_hour: float = 1.0
    distance_s: float = 0.0

    @property
    def part(self) -> float:
        """Return the share of the load that one engine carries."""
        return 1 / self.needed if self.needed > 0 else inf


def cheapest_mix(options: Sequence[PoolOption], minimum: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return engines by pool that carry the load, or all that the bounds allow.

    Lower ranks are filled first, whatever they cost: engines on premises are paid anyway. Within a rank the mix is the
    cheapest one: all but the last engines come from the pool with the least price per part of the load, and the rest
    from the pool, or the two pools, that carry it at the least price. `minimum` raises the lower bounds.
    """
    floor = minimum or {}
    counts = {option.name: min(max(option.lowest, floor.get(option.name, 0)), option.highest) for option in options}
    for rank in sorted({option.rank for option in options}):
        missing = 1 - _carried(options, counts)
        if missing <= ROUNDING:
            break
        _fill(sorted((one for one in options if one.rank == rank), key=_cost_key), counts, missing)
    return counts


def is_carried(options: Sequence[PoolOption], counts: Mapping[str, int]) -> bool:
    """Return whether these engines carry the load."""
    return _carried(options, counts) >= 1 - ROUNDING


def _carried(options: Sequence[PoolOption], counts: Mapping[str, int]) -> float:
    return sum(counts[option.name] * option.part if counts[option.name] else 0.0 for option in options)


def _cost_key(option: PoolOption) -> tuple[float, float, str]:
    return option.price_per_hour * option.needed, option.distance_s, option.name


def _fill(options: Sequence[PoolOption], counts: dict[str, int], missing: float) -> None:
    """Add engines of one rank, cheapest first, until the missing share is carried or all are used."""
    for at, option in enumerate(options):
        room = option.highest - counts[option.name]
        wanted = ceil(missing / option.part - ROUNDING) if option.part < inf else 0
        if wanted > room:
            counts[option.name] += room
            missing -= room * option.part
            continue
        best = _last_engines(options[at:], counts, missing, wanted)
        for name, count in best.items():
            counts[name] += count
        return


def _last_engines(
    options: Sequence[PoolOption], counts: Mapping[str, int], missing: float, wanted: int
) -> dict[str, int]:
    """Return the cheapest of: `wanted` engines of the first pool; or a few fewer and some of one other pool."""
    first = options[0]
    best, best_price = {first.name: wanted}, wanted * first.price_per_hour
    for fewer in range(1, min(wanted, 4) + 1):
        kept = wanted - fewer
        left = missing - kept * first.part
        for other in options[1:]:
            count = ceil(left / other.part - ROUNDING) if other.part < inf else 0
            price = kept * first.price_per_hour + count * other.price_per_hour
            if count <= other.highest - counts[other.name] and price < best_price - ROUNDING:
                best, best_price = {first.name: kept, other.name: count}, price
    return best
