"""Figures of one engine that are compared: with its peers, and with what the fleet had before. Pure.

Each function returns None where the figures that it needs are missing, or too few to mean anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

from diagnosis.facts import EngineWindow, FleetFacts, GatewayView, PodObservation, is_recent

MIN_GAPS = 50.0
"""Tokens behind the first, in a window, below which their times are not compared."""

MIN_QUERIES = 4_000.0
"""Prompt tokens looked up, below which a hit rate is not compared."""

MIN_DRAFTED = 200.0

MIN_DRAFTS = 10.0
"""Drafts below which their acceptance counts as unknown."""

MIN_TRANSFERS = 5.0

MIN_COMPUTED = 1_000.0
"""Prompt tokens computed, below which prefill is not compared."""


def gap_s(engine: EngineWindow) -> float | None:
    """Return the mean seconds between two outputs of a request."""
    gaps = engine.token_gap
    if gaps is not None and gaps.count >= MIN_GAPS:
        return gaps.mean
    if engine.decode is not None and engine.generation_tokens and engine.generation_tokens >= MIN_GAPS:
        finished = engine.decode.count
        answers = engine.answer_lengths
        if finished >= 5 and answers is not None and answers.total > finished:
            return engine.decode.total / (answers.total - finished)
    return None


STALL_S, STALL_TIMES = 0.2, 4.0
"""Seconds between two outputs, and those by the median, from which a gap counts as a stall."""


def stalled_share(engine: EngineWindow) -> float | None:
    """Return the share of decode time that is spent in stalls: gaps of 0.2 s or more and four medians or more.

    None without a histogram. A few long gaps are few of all gaps, but much of the time.
    """
    gaps = engine.token_gap
    if gaps is None or gaps.count < MIN_GAPS or gaps.total <= 0:
        return None
    middle = gaps.quantile(0.5)
    if not middle:
        return None
    limit = max(STALL_S, STALL_TIMES * middle)
    stalled = sum(
        low * count for low, count in zip(gaps.limits, gaps.counts[1:], strict=True) if low >= limit and count
    )
    return min(stalled / gaps.total, 1.0)


def hit_rate(engine: EngineWindow) -> float | None:
    """Return the share of looked-up prompt tokens that the engine's own prefix cache held."""
    if engine.cache_queries is not None and engine.cache_hits is not None and engine.cache_queries >= MIN_QUERIES:
        return min(engine.cache_hits / engine.cache_queries, 1.0)
    computed, cached = engine.computed_tokens, engine.cached_tokens
    if computed is None or cached is None or computed + cached < MIN_QUERIES:
        return None
    return cached / (computed + cached)


def acceptance(engine: EngineWindow) -> float | None:
    """Return the share of drafted tokens that were accepted."""
    held = engine.speculation
    if held is None or held.draft_tokens is None or held.draft_tokens < MIN_DRAFTED:
        return None
    return held.acceptance


def acceptance_of_few(pod: PodObservation) -> tuple[float, float] | None:
    """Return the share of a pod's drafted tokens that were accepted, and the highest that it may be with 95 %.

    It tells where acceptance is surely low before drafts are enough to measure it. One draft counts as one trial,
    because its tokens are accepted from its first on: they are not independent. None below `MIN_DRAFTS`.
    """
    drafts = drafted = accepted = 0.0
    for engine in pod.engines:
        held = engine.speculation
        if held is not None and held.drafts and held.draft_tokens and held.accepted_tokens is not None:
            drafts += held.drafts
            drafted += held.draft_tokens
            accepted += held.accepted_tokens
    if drafts < MIN_DRAFTS:
        return None
    share = min(accepted / drafted, 1.0)
    return share, highest_share(share, drafts)


NORMAL_QUANTILE = 1.645
"""Of 95 %, one side."""


def highest_share(share: float, trials: float) -> float:
    """Return the upper end of Wilson's interval for a share (0 to 1) that was seen in so many trials, more than 0."""
    squared = NORMAL_QUANTILE**2
    middle = share + squared / (2 * trials)
    margin = NORMAL_QUANTILE * sqrt(share * (1 - share) / trials + squared / (4 * trials**2))
    return (middle + margin) / (1 + squared / trials)


def bandwidth(engine: EngineWindow) -> float | None:
    """Return the bytes/s that transfers reached."""
    held = engine.transfers
    if held is None or held.count is None or held.count < MIN_TRANSFERS:
        return None
    return held.bytes_per_s


def descriptor_bytes(engine: EngineWindow) -> float | None:
    """Return the bytes moved by one descriptor."""
    held = engine.transfers
    if held is None or not held.descriptors or not held.bytes or (held.count or 0.0) < MIN_TRANSFERS:
        return None
    return held.bytes / held.descriptors


def prefill_s_per_token(engine: EngineWindow) -> float | None:
    """Return the seconds of prefill for each computed prompt token: higher where prompts share steps."""
    held, computed = engine.prefill, engine.computed_tokens
    if held is None or held.count < 5 or computed is None or computed < MIN_COMPUTED:
        return None
    return held.total / computed


def store_s_per_token(engine: EngineWindow) -> float | None:
    """Return the seconds that a store or host memory takes to load one token."""
    if not engine.store_load_s or not engine.fetched_tokens or engine.fetched_tokens < MIN_COMPUTED:
        return None
    return engine.store_load_s / engine.fetched_tokens


def computed_per_s(engine: EngineWindow) -> float | None:
    """Return the prompt tokens computed a second."""
    if engine.computed_tokens is None or engine.length_s <= 0:
        return None
    return engine.computed_tokens / engine.length_s


def computed_per_output(engine: EngineWindow) -> float | None:
    """Return the prompt tokens computed for each generated one: other traffic, not more of the same, makes it rise."""
    if engine.computed_tokens is None or not engine.generation_tokens or engine.generation_tokens < MIN_GAPS:
        return None
    return engine.computed_tokens / engine.generation_tokens


def running(engine: EngineWindow) -> float | None:
    """Return the mean number of running requests."""
    return None if engine.running is None else engine.running.mean


Figure = Callable[[EngineWindow], float | None]

LEVELS: Mapping[str, Figure] = {
    "gap_s": gap_s,
    "hit_rate": hit_rate,
    "acceptance": acceptance,
    "bandwidth": bandwidth,
    "descriptor_bytes": descriptor_bytes,
    "prefill_s_per_token": prefill_s_per_token,
    "computed_per_s": computed_per_s,
    "computed_per_output": computed_per_output,
    "store_s_per_token": store_s_per_token,
    "running": running,
}
"""What a baseline keeps by pool and role."""

REDIS, LOOP_LAG = "redis_s", "loop_lag_s"


def level_key(pod: PodObservation) -> str:
    """Return the pool and role whose engines are alike."""
    return f"{pod.pool}/{pod.role}"


def levels_of(facts: FleetFacts) -> dict[tuple[str, str], list[float]]:
    """Return the values of all engines and gateways, by pool with role and name of the figure.

    Old windows have none: a pod that no longer answers is not learned from at each look.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for pod in facts.pods:
        for engine in pod.engines:
            if not is_recent(engine.start_s, engine.end_s, facts.at_s):
                continue
            for name, figure in LEVELS.items():
                if (value := figure(engine)) is not None:
                    found.setdefault((level_key(pod), name), []).append(value)
    for gateway in facts.gateways:
        if not is_recent(gateway.start_s, gateway.end_s, facts.at_s):
            continue
        if gateway.redis is not None and (value := gateway.redis.quantile(0.5)) is not None:
            found.setdefault(("", REDIS), []).append(value)
        if gateway.loop_lag is not None and (value := gateway.loop_lag.quantile(0.95)) is not None:
            found.setdefault(("", LOOP_LAG), []).append(value)
    return found


def pod_figure(pod: PodObservation, figure: Figure) -> float | None:
    """Return the mean of a figure over the engines of a pod; None where no engine has it."""
    values = [value for engine in pod.engines if (value := figure(engine)) is not None]
    return sum(values) / len(values) if values else None


def never_generates(pod: PodObservation) -> bool:
    """Return whether no engine of a pod has generated a token since its start: it makes vectors, or is not used."""
    return bool(pod.engines) and all(engine.generated_since_start == 0.0 for engine in pod.engines)


def predicted_hit_rate(view: GatewayView | None) -> float | None:
    """Return the share of prompt tokens that the gateway predicted to be cached."""
    if view is None or view.predicted_cached_tokens is None or not view.prompt_tokens:
        return None
    return view.predicted_cached_tokens / view.prompt_tokens if view.prompt_tokens >= MIN_QUERIES else None


def actual_hit_rate(view: GatewayView | None) -> float | None:
    """Return the share of prompt tokens that engines reported as cached."""
    if view is None or view.actual_cached_tokens is None or not view.prompt_tokens:
        return None
    return view.actual_cached_tokens / view.prompt_tokens if view.prompt_tokens >= MIN_QUERIES else None


def constrained_share(view: GatewayView | None) -> float | None:
    """Return the share of a pod's requests whose output a grammar restricts."""
    if view is None or view.constrained is None or not view.requests or view.requests < 5:
        return None
    return view.constrained / view.requests
