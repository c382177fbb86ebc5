"""A small fleet for tests of recipes: two pools that are healthy, and ways to change one figure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diagnosis.baseline import Baseline, learned
from diagnosis.distribution import TIME_LIMITS_S, Distribution, distribution_of
from diagnosis.facts import (
    CACHED_TOKENS,
    PRIORITY,
    BuildFacts,
    EngineFlags,
    EngineWindow,
    EnvironmentFacts,
    FleetFacts,
    GatewayLoad,
    GatewayView,
    GaugeReadings,
    HardwareFacts,
    NicPort,
    PodObservation,
    SpeculationWindow,
    TransferWindow,
)
from diagnosis.recipe import Indication, Missing
from diagnosis.recipes.registry import BY_NAME
from diagnosis.scene import Scene
from routing.facts import Role

NOW_S = 1_790_000_000.0
START_S = NOW_S - 30.0

GAP_LIMITS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


def gauge(value: float) -> GaugeReadings:
    return GaugeReadings(value, value, value, value)


def gaps(*values: tuple[float, int]) -> Distribution:
    return distribution_of((value for value, times in values for _ in range(times)), GAP_LIMITS)


def engine(**changes: Any) -> EngineWindow:
    """A healthy engine: 40 requests of 400 prompt tokens, 60 % of them cached, and 4,000 tokens."""
    held = EngineWindow(
        rank=0,
        start_s=START_S,
        end_s=NOW_S,
        running=gauge(4.0),
        waiting=gauge(0.0),
        waiting_for_capacity=gauge(0.0),
        waiting_deferred=gauge(0.0),
        kv_usage=gauge(0.4),
        finished=40.0,
        preemptions=0.0,
        prompt_tokens=16_000.0,
        computed_tokens=6_400.0,
        cached_tokens=9_600.0,
        generation_tokens=4_000.0,
        cache_queries=16_000.0,
        cache_hits=9_600.0,
        queue=distribution_of([0.001] * 40),
        prefill=distribution_of([0.05] * 40),
        decode=distribution_of([2.0] * 40),
        token_gap=gaps((0.02, 950), (0.06, 50)),
        iteration_tokens=distribution_of([8.0] * 900 + [500.0] * 100, (1.0, 16.0, 128.0, 1024.0, 8192.0)),
    )
    return replace(held, **changes)


def speculating(**changes: Any) -> EngineWindow:
    return engine(speculation=SpeculationWindow(1_000.0, 2_000.0, 1_200.0), **changes)


def fetching(**changes: Any) -> EngineWindow:
    held = engine(
        fetches_queued=gauge(0.1),
        fetches_running=gauge(0.5),
        computed_tokens=40.0,
        transfers=TransferWindow(
            count=30.0, bytes=30e9, seconds=3.0, post_s=0.1, descriptors=1_000.0, failed=0.0, expired=0.0
        ),
    )
    return replace(held, **changes)


def course(*medians: float | None) -> tuple[tuple[float, float], ...]:
    """Median first tokens of the window's steps; None: none came."""
    return tuple((START_S + 5 * step, held) for step, held in enumerate(medians) if held is not None)


def view(**changes: Any) -> GatewayView:
    held = GatewayView(
        start_s=START_S,
        end_s=NOW_S,
        requests=40.0,
        constrained=1.0,
        salted=0.0,
        salts=0.0,
        predicted_cached_tokens=9_600.0,
        actual_cached_tokens=9_600.0,
        prompt_tokens=16_000.0,
        first_token=distribution_of([0.06] * 40),
        first_token_course=course(*[0.06] * 6),
        token_gap=distribution_of([0.021] * 40),
    )
    return replace(held, **changes)


def flags(**changes: Any) -> EngineFlags:
    held = EngineFlags(
        read_at_s=NOW_S,
        chunked_prefill=True,
        max_num_batched_tokens=2_048,
        max_num_seqs=64,
        attention_backend="FLASH_ATTN",
        kv_dtype="fp8",
        block_size=16,
        hash_algorithm="sha256_cbor",
        prefix_caching=True,
        scheduling_policy="priority",
        prompt_tokens_details=True,
    )
    return replace(held, **changes)


def pod(name: str, pool: str = "chat", role: Role = Role.EITHER, **changes: Any) -> PodObservation:
    held = PodObservation(
        address=f"http://{name}:8000",
        pool=pool,
        model=pool,
        role=role,
        ready_since_s=NOW_S - 10_000,
        engines=(engine() if role is Role.EITHER else fetching(),),
        requests=view(),
        flags=flags(),
        build=BuildFacts(NOW_S, "0.32.0", "b1", "sha256:aa", "c0", "7e", "main", "r1"),
        environment=EnvironmentFacts(NOW_S, {"UCX_TLS": "rc,cuda_copy"}, {"PYTHONHASHSEED": "5eed"}),
        hardware=HardwareFacts(NOW_S, name, "H100", 1, (NicPort("mlx5_0", "active", 200.0),)),
    )
    return replace(held, **changes)


def fleet(*changed: PodObservation, **changes: Any) -> FleetFacts:
    """Three pods that do both, one that prefills and three that decode, with those that are given in their places."""
    pods = [pod(f"c{number}") for number in range(3)]
    prefill = engine(token_gap=None, generation_tokens=30.0, transfers=None)
    pods += [pod("p0", "split", Role.PREFILL, engines=(prefill,))]
    pods += [pod(f"d{number}", "split", Role.DECODE) for number in range(3)]
    by_address = {each.address: each for each in pods} | {each.address: each for each in changed}
    held = FleetFacts(
        at_s=NOW_S,
        pods=tuple(by_address.values()),
        gateways=(
            GatewayLoad(
                START_S,
                NOW_S,
                "g",
                cpu=0.3,
                loop_lag=distribution_of([0.001] * 50),
                redis=distribution_of([0.001] * 50),
            ),
        ),
        clock_offsets_s={each.address: 0.01 for each in pods},
        clocks_read_at_s=NOW_S,
        wanted_features={"chat": frozenset({PRIORITY, CACHED_TOKENS})},
    )
    return replace(held, **changes)


def later(facts: FleetFacts, seconds: float) -> FleetFacts:
    """The same facts, read later."""

    def moved(held: Any) -> Any:
        return replace(held, start_s=held.start_s + seconds, end_s=held.end_s + seconds)

    pods = tuple(
        replace(
            each,
            engines=tuple(moved(engine) for engine in each.engines),
            requests=None if each.requests is None else moved(each.requests),
        )
        for each in facts.pods
    )
    gateways = tuple(moved(each) for each in facts.gateways)
    return replace(facts, at_s=facts.at_s + seconds, pods=pods, gateways=gateways)


def baseline(facts: FleetFacts | None = None) -> Baseline:
    """What ten looks at a healthy fleet leave."""
    held = Baseline()
    for _ in range(10):
        held = learned(held, fleet() if facts is None else facts)
    return held


def looked(recipe: str, facts: FleetFacts, normal: Baseline | None = None) -> tuple[set[str], set[str]]:
    """Return the pods (empty: pool or fleet) that a recipe names, and those that it could not check."""
    found = list(BY_NAME[recipe].look(Scene(facts, normal, NOW_S)))
    named = {each.pod for each in found if isinstance(each, Indication)}
    unchecked = {each.pod for each in found if isinstance(each, Missing)}
    return named, unchecked


def seconds(*values: float) -> Distribution:
    return distribution_of(values, TIME_LIMITS_S)
