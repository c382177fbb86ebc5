"""Intervals of predictions: the same replay on engines as fast and as slow as their profile leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from simulator.engine_profile import UNVERIFIED, EngineProfile, slowed
from simulator.profile import Profile
from simulator.report import RoutingReport

WIDTH = 120


def fast_and_slow(profile: Profile, spread: float) -> tuple[Profile, Profile]:
    """Return the engine `1 + spread` times as fast, and as slow."""
    return slowed(profile, 1.0 / (1.0 + spread)), slowed(profile, 1.0 + spread)


def explain_intervals(
    profile: EngineProfile, hardware: str | None, ends: Sequence[tuple[RoutingReport, RoutingReport]]
) -> str:
    """Return where the engine's speeds come from, and each routing's figures at both ends of what they leave open."""
    spread = profile.spread_on(hardware)
    ending = " Between an engine so much faster and one so much slower:" if ends else ""
    lines = [fill(_source(profile, hardware, spread) + ending, WIDTH)]
    for fast, slow in ends:
        lines.append(
            f"  {fast.routing}: TTFT p50 {_range(fast.ttft_s.p50, slow.ttft_s.p50)} s, p95 "
            f"{_range(fast.ttft_s.p95, slow.ttft_s.p95)} s, TPOT p50 "
            f"{_range(fast.tpot_s.p50 * 1000, slow.tpot_s.p50 * 1000)} ms, p95 "
            f"{_range(fast.tpot_s.p95 * 1000, slow.tpot_s.p95 * 1000)} ms"
        )
    return "\n".join(lines)


def _source(profile: EngineProfile, hardware: str | None, spread: float) -> str:
    where = f"{profile.model or 'an engine'} on {profile.hardware}"
    if profile.is_verified_on(hardware):
        words = f"Engine profile measured on {profile.date or 'an unknown day'}: {where}."
    elif hardware in (None, profile.hardware):
        words = f"Engine profile computed for {where}: {UNVERIFIED}."
    else:
        words = f"Engine profile of {where}, played for {hardware}: {UNVERIFIED}."
    return f"{words} Speeds may be off by {spread:.0%}."


def _range(one: float, other: float) -> str:
    return f"{min(one, other):.3g} to {max(one, other):.3g}"
