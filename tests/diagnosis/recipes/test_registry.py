"""Each recipe finds its fault, is silent on a healthy fleet, and says so where its figures are missing."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest

from diagnosis.baseline import Baseline
from diagnosis.distribution import Distribution, distribution_of
from diagnosis.facts import (
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
from diagnosis.finding import Severity
from diagnosis.recipe import Indication
from diagnosis.recipes.registry import BY_NAME, DRAINABLE, RECIPES
from diagnosis.scene import Scene
from routing.facts import Role
from tests.diagnosis.scene import (
    NOW_S,
    START_S,
    baseline,
    course,
    engine,
    fetching,
    flags,
    fleet,
    gaps,
    gauge,
    looked,
    pod,
    speculating,
    view,
)

C0, D0 = "http://c0:8000", "http://d0:8000"


def chat(**changes: object) -> FleetFacts:
    return fleet(pod("c0", engines=(engine(**changes),)))


def decode(**changes: object) -> FleetFacts:
    return fleet(pod("d0", "split", Role.DECODE, engines=(fetching(**changes),)))


def late(*medians: float | None) -> FleetFacts:
    """One pod whose first tokens are late, with their medians by steps of 5 s."""
    return fleet(pod("c0", requests=view(first_token=distribution_of([0.9] * 40), first_token_course=course(*medians))))


def ranks(*engines: EngineWindow) -> PodObservation:
    return pod("c0", engines=tuple(replace(each, rank=rank) for rank, each in enumerate(engines)))


SLOW = TransferWindow(count=30.0, bytes=30e9, seconds=12.0, descriptors=1_000.0, failed=0.0)
BUILD = pod("c0").build
assert BUILD is not None

SPECULATING = fleet(*(pod(f"c{number}", engines=(speculating(),)) for number in range(3)))
LOW = SpeculationWindow(1_000.0, 2_000.0, 300.0)
TAIL = gaps((0.02, 900), (0.6, 100))

FOUND: dict[str, tuple[FleetFacts, set[str], Baseline | None]] = {
    "kv_pressure": (chat(preemptions=8.0, kv_usage=gauge(0.97)), {C0}, None),
    "chunked_prefill_off": (
        fleet(pod("c0", flags=flags(chunked_prefill=False), engines=(engine(token_gap=TAIL),))),
        {C0},
        None,
    ),
    "coarse_chunks": (
        fleet(pod("c0", flags=flags(max_num_batched_tokens=16_384), engines=(engine(token_gap=TAIL),))),
        {C0},
        None,
    ),
    "decode_starved_by_prefill": (chat(token_gap=gaps((0.08, 500)), computed_tokens=90_000.0), {C0}, None),
    "hot_expert": (chat(expert_balance=gauge(0.4)), {C0}, None),
    "dp_rank_stalled": (fleet(ranks(engine(), engine(generation_tokens=0.0, computed_tokens=0.0))), {C0}, None),
    "engine_stalled": (chat(generation_tokens=0.0, computed_tokens=0.0), {C0}, None),
    "idle_ranks": (fleet(ranks(engine(running=gauge(8.0)), engine(running=gauge(0.0)))), {C0}, None),
    "api_server_bound": (late(*[0.9] * 6), {C0}, None),
    "late_to_engine": (
        fleet(
            replace(late(*[0.9] * 6).pods[0], engines=(engine(server_cpu_s=3.0),)),
            *(pod(name, engines=(engine(server_cpu_s=3.0),)) for name in ("c1", "c2")),
        ),
        {C0},
        None,
    ),
    "transfer_queue": (decode(fetches_queued=gauge(4.0)), {D0}, None),
    "transfers_failing": (decode(transfers=replace(SLOW, failed=6.0)), {D0}, None),
    "transfers_stalled": (
        fleet(
            pod("p0", "split", Role.PREFILL, requests=view(pairs=20.0, lost_pairs=18.0)),
            pod("p1", "split", Role.PREFILL, requests=view(pairs=20.0, lost_pairs=0.0)),
            *(pod(f"d{n}", "split", Role.DECODE, requests=view(pairs=14.0, lost_pairs=6.0)) for n in range(3)),
        ),
        {"http://p0:8000"},
        None,
    ),
    "slow_transfers": (decode(transfers=SLOW), {D0}, None),
    "tcp_fallback": (
        fleet(
            pod(
                "d0",
                "split",
                Role.DECODE,
                engines=(fetching(transfers=replace(SLOW, seconds=30.0)),),
                environment=EnvironmentFacts(NOW_S, {"UCX_TLS": "rc,tcp"}, {}),
            )
        ),
        {D0},
        None,
    ),
    "rdma_port_down": (
        fleet(pod("d0", "split", Role.DECODE, hardware=HardwareFacts(NOW_S, ports=(NicPort("mlx5_0", "down"),)))),
        {D0},
        None,
    ),
    "single_service": (
        fleet(
            *(pod(f"d{number}", "split", Role.DECODE, metadata_service="etcd:2379") for number in range(2)),
            single_services=frozenset({"etcd:2379"}),
        ),
        {""},
        None,
    ),
    "uncollated_transfers": (
        decode(transfers=TransferWindow(count=30.0, bytes=30e9, seconds=3.0, descriptors=9_000.0)),
        {D0},
        None,
    ),
    "acceptance_decayed": (fleet(pod("c0", engines=(engine(speculation=LOW),))), {C0}, baseline(SPECULATING)),
    "constrained_on_speculating": (
        fleet(pod("c0", engines=(engine(speculation=LOW),), requests=view(constrained=30.0))),
        {C0},
        baseline(SPECULATING),
    ),
    "speculation_on_saturated_batch": (
        chat(
            running=gauge(64.0),
            token_gap=gaps((0.09, 900)),
            speculation=SpeculationWindow(1_000.0, 6_000.0, 700.0),
        ),
        {C0},
        baseline(),
    ),
    "prefix_cache_off": (fleet(pod("c0", flags=flags(prefix_caching=False))), {C0}, None),
    "prefix_cache_thrashing": (chat(cache_hits=1_000.0, computed_tokens=15_000.0), {C0}, baseline()),
    "salts_split_prefixes": (
        fleet(pod("c0", requests=view(salted=40.0, salts=40.0), engines=(engine(cache_hits=100.0),))),
        {C0},
        baseline(),
    ),
    "store_without_use": (
        chat(store_queries=60_000.0, store_hits=100.0, store_queries_since_start=900_000.0),
        {C0},
        None,
    ),
    "prefill_pool_unused": (
        fleet(
            pod("p0", "split", Role.PREFILL, engines=(engine(computed_tokens=0.0),)),
            pod("d0", "split", Role.DECODE, engines=(fetching(computed_tokens=9_000.0),)),
        ),
        {"http://p0:8000"},
        None,
    ),
    "unlike_hashing": (fleet(pod("c0", environment=EnvironmentFacts(NOW_S, {}, {"PYTHONHASHSEED": "x"}))), {C0}, None),
    "unlike_builds": (fleet(pod("c0", build=replace(BUILD, image_digest="sha256:bb"))), {C0}, None),
    "unlike_kernels": (fleet(pod("c0", flags=flags(attention_backend="TRITON_ATTN"))), {C0}, None),
    "unlike_kv_formats": (fleet(pod("c0", flags=flags(kv_dtype="bfloat16"))), {C0}, None),
    "unlike_models": (fleet(pod("c0", build=replace(BUILD, template_digest="other"))), {C0}, None),
    "unlike_limits": (fleet(pod("c0", flags=flags(max_num_seqs=8))), {C0}, None),
    "gateway_saturated": (
        fleet(gateways=(GatewayLoad(START_S, NOW_S, cpu=0.99, loop_lag=distribution_of([0.3] * 50)),)),
        {""},
        None,
    ),
    "redis_slow": (
        fleet(gateways=(GatewayLoad(START_S, NOW_S, cpu=0.3, redis=distribution_of([0.1] * 50)),)),
        {""},
        None,
    ),
    "clocks_apart": (fleet(clock_offsets_s={C0: -3.0}), {C0}, None),
    "feature_without_flag": (fleet(pod("c0", flags=flags(scheduling_policy="fcfs"))), {C0}, None),
    "slower_than_peers": (
        chat(token_gap=gaps((0.045, 900)), prefill=distribution_of([0.12] * 40)),
        {C0},
        None,
    ),
}
"""By recipe: facts that show its fault, the pods that it must name, and the baseline that it needs."""


def test_every_recipe_has_a_case() -> None:
    """A recipe without one could be blind."""
    assert set(FOUND) == set(BY_NAME)
    assert len(BY_NAME) == len(RECIPES) >= 30


@pytest.mark.parametrize("name", sorted(FOUND))
def test_a_recipe_names_its_fault_and_the_pod(name: str) -> None:
    """With the evidence in place, and nothing else."""
    facts, pods, normal = FOUND[name]
    named, _ = looked(name, facts, normal)
    assert named == pods


@pytest.mark.parametrize("name", sorted(FOUND))
@pytest.mark.parametrize("normal", [None, baseline()], ids=["alone", "with a baseline"])
def test_a_recipe_is_silent_on_a_healthy_fleet(name: str, normal: Baseline | None) -> None:
    """Two pools without a fault, one of them speculating."""
    assert looked(name, fleet(), normal)[0] == set()
    assert looked(name, SPECULATING, normal)[0] == set()


@pytest.mark.parametrize("name", sorted(FOUND))
def test_a_recipe_is_silent_where_everything_is_missing(name: str) -> None:
    """Pods of which only the address is known: nothing is found, and nothing raises."""
    pods = tuple(PodObservation(each.address, each.pool, role=each.role) for each in fleet().pods)
    assert looked(name, FleetFacts(NOW_S, pods), None)[0] == set()


@pytest.mark.parametrize("name", sorted(FOUND))
def test_a_recipe_does_not_use_stale_figures(name: str) -> None:
    """Two hours later the same facts are no evidence, but for what is configured."""
    facts, _, normal = FOUND[name]
    later = replace(facts, gateways=(), clocks_read_at_s=NOW_S - 7_200)
    old = tuple(_aged(each) for each in later.pods)
    named, _ = looked(name, replace(later, pods=old), normal)
    assert named == set() or name == "single_service"


def _aged(held: PodObservation) -> PodObservation:
    assert held.flags is not None
    assert held.requests is not None
    assert held.build is not None
    assert held.environment is not None
    assert held.hardware is not None
    then = NOW_S - 7_200
    return replace(
        held,
        engines=tuple(replace(each, start_s=then - 30, end_s=then) for each in held.engines),
        requests=replace(held.requests, start_s=then - 30, end_s=then),
        flags=replace(held.flags, read_at_s=then),
        build=replace(held.build, read_at_s=then),
        environment=replace(held.environment, read_at_s=then),
        hardware=replace(held.hardware, read_at_s=then),
    )


GROUPS: tuple[type, ...] = (EngineWindow, EngineFlags, GatewayView)
KEPT = {"rank", "start_s", "end_s", "is_restarted", "read_at_s"}


@pytest.mark.parametrize("name", sorted(FOUND))
def test_no_single_missing_figure_raises(name: str) -> None:
    """Each figure is taken away in turn, of all pods."""
    facts, _, normal = FOUND[name]
    for group in GROUPS:
        for each in fields(group):
            if each.name not in KEPT:
                looked(
                    name, replace(facts, pods=tuple(_without(held, group, each.name) for held in facts.pods)), normal
                )


def _without(held: PodObservation, group: type, name: str) -> PodObservation:
    gone: dict[str, Any] = {name: None}
    if group is EngineWindow:
        return replace(held, engines=tuple(replace(each, **gone) for each in held.engines))
    if group is EngineFlags:
        return replace(held, flags=replace(held.flags, **gone) if held.flags else None)
    return replace(held, requests=replace(held.requests, **gone) if held.requests else None)


def test_missing_figures_are_reported() -> None:
    """What cannot be checked is a gap, not health."""
    nothing = chat(preemptions=None, kv_usage=None)
    assert looked("kv_pressure", nothing) == (set(), {C0})
    unknown = fleet(pod("c0", flags=None))
    assert looked("chunked_prefill_off", unknown) == (set(), {C0})
    assert looked("feature_without_flag", unknown) == (set(), {C0})


def test_texts_are_complete_and_change_one_thing() -> None:
    """Every recipe has all texts; no first step says restart, and each begins with one order."""
    for recipe in RECIPES:
        texts = (recipe.title, recipe.symptom, recipe.looks_at, recipe.cause, recipe.helped, recipe.wrong_if)
        assert all(len(text) > 10 for text in texts), recipe.name
        assert not re.search(r"\b(restart|reboot)", recipe.first_step.lower()), recipe.name
        assert re.match(r"[A-Z][a-z]+ ", recipe.first_step), recipe.name
        assert recipe.name not in recipe.explains


def test_consequences_name_recipes_and_form_no_circle() -> None:
    """Two recipes do not explain each other."""
    for recipe in RECIPES:
        for other in recipe.explains:
            assert recipe.name not in BY_NAME[other].explains, (recipe.name, other)


def test_a_prompt_that_takes_long_is_no_stall() -> None:
    """Its tokens are counted at its end, and its KV grows. Where it is one step, or a model whose KV does not grow, it
    looks like a stall: one tenant could bring that about, so no pod is drained for it.
    """
    growing = GaugeReadings(0.3, 0.2, 0.4, 0.4)
    held = chat(generation_tokens=0.0, computed_tokens=0.0, kv_usage=growing)
    assert looked("engine_stalled", held) == (set(), set())
    one_step = chat(generation_tokens=0.0, computed_tokens=0.0, running=gauge(1.0))
    assert looked("engine_stalled", one_step)[0] == {C0}
    assert all(BY_NAME[name].depends_on_requests for name in ("engine_stalled", "dp_rank_stalled"))


def test_more_of_the_same_traffic_starves_no_decode() -> None:
    """A pod that serves for a lost peer computes twice the prompt tokens, and generates twice as many as well."""
    alone = {"token_gap": gaps((0.08, 500)), "computed_tokens": 14_000.0}
    before = baseline()

    def named(**changes: object) -> set[str]:
        only = fleet(pod("c0", engines=(engine(**alone | changes),)))
        return looked("decode_starved_by_prefill", replace(only, pods=only.pods[:1]), before)[0]

    assert named(generation_tokens=8_000.0) == set()
    assert named(generation_tokens=4_000.0) == {C0}


def test_a_store_counts_as_useless_only_when_it_could_have_been_of_use() -> None:
    """Not before four times the KV cache was looked up: until then prompts are new to it."""
    lookups = {"store_queries": 60_000.0, "store_hits": 100.0}

    def looks(since: float | None, size: int | None = 50_000) -> tuple[set[str], set[str]]:
        held = pod(
            "c0", engines=(engine(**lookups, store_queries_since_start=since),), flags=flags(kv_capacity_tokens=size)
        )
        return looked("store_without_use", fleet(held))

    assert looks(199_000.0) == looks(None) == (set(), {C0})
    assert looks(201_000.0) == ({C0}, set())
    assert looks(399_000.0, None) == (set(), {C0})
    assert looks(401_000.0, None) == ({C0}, set())


def test_a_pool_whose_stores_find_nothing_may_have_new_prompts() -> None:
    """Then the finding is not sure; it is where the peers' stores find most of what they look up."""
    lookups = {"store_queries": 60_000.0, "store_queries_since_start": 900_000.0}

    def confidence(found_by_peers: float) -> float:
        pods = [pod("c0", engines=(engine(store_hits=0.0, **lookups),))]
        pods += [pod(name, engines=(engine(store_hits=found_by_peers, **lookups),)) for name in ("c1", "c2")]
        found = BY_NAME["store_without_use"].look(Scene(fleet(*pods), None, NOW_S))
        return next(each.confidence for each in found if isinstance(each, Indication) and each.pod == C0)

    assert confidence(40_000.0) == 0.85
    assert confidence(600.0) == 0.65


def test_salts_that_were_always_there_split_nothing() -> None:
    """Without a baseline, or with one of the same hits, tenants are merely isolated."""
    salted = view(salted=40.0, salts=40.0)
    few_hits = fleet(pod("c0", requests=salted, engines=(engine(cache_hits=100.0),)))
    assert looked("salts_split_prefixes", few_hits) == (set(), {C0})
    assert looked("salts_split_prefixes", fleet(pod("c0", requests=salted)), baseline()) == (set(), set())


def test_a_port_that_carries_no_kv_may_be_down() -> None:
    """Nodes have ports that nothing is connected to: without a connector no pod is drained for one."""
    down = HardwareFacts(NOW_S, ports=(NicPort("mlx5_1", "down"),))
    assert looked("rdma_port_down", fleet(pod("c0", hardware=down))) == (set(), set())
    with_connector = pod("c0", hardware=down, flags=flags(connector="NixlConnector"))
    assert looked("rdma_port_down", fleet(with_connector)) == ({C0}, set())


@pytest.mark.parametrize(
    ("medians", "named"),
    [
        ((0.06, 0.06, 4.0, 4.0, 0.06, 0.06), set()),
        ((0.06, None, None, 6.0, None, 0.06), set()),
        ((None, None, None, 0.06, 6.0, 6.0), set()),
        ((0.9, 0.8, None, 0.9, 0.06, 0.9), {C0}),
    ],
    ids=["resumed", "resumed, and few requests", "just resumed", "late nearly all the time"],
)
def test_a_pod_that_was_paused_has_no_bound_api_server(medians: tuple[float | None, ...], named: set[str]) -> None:
    """What waited for it is answered at one time, so that most first tokens of the window may be late."""
    assert looked("api_server_bound", late(*medians)) == (named, set())


def test_an_api_server_with_cpu_to_spare_is_not_bound() -> None:
    """Its host, its network or a pause holds requests up; without the figure the finding is not sure."""
    found = late(*[0.9] * 6)

    def with_cpu(cores: float) -> FleetFacts:
        first = found.pods[0]
        cpu_s = cores * (NOW_S - START_S)
        return replace(found, pods=(replace(first, engines=(engine(server_cpu_s=cpu_s),)), *found.pods[1:]))

    assert looked("api_server_bound", with_cpu(0.45)) == (set(), {C0})
    assert looked("api_server_bound", with_cpu(0.55)) == ({C0}, set())
    looks = BY_NAME["api_server_bound"].look(Scene(found, None, NOW_S))
    assert [each.confidence for each in looks if isinstance(each, Indication)] == [0.65]


def test_few_times_do_not_show_a_bound_api_server() -> None:
    """All first tokens came at one time: not known."""
    assert looked("api_server_bound", late(None, None, None, None, 6.0, 6.0)) == (set(), {C0})


def test_a_pod_that_was_just_started_has_no_bound_api_server() -> None:
    """What the gateway measured may be of the engine before."""
    found = late(*[0.9] * 6)
    started = replace(found.pods[0], ready_since_s=NOW_S - 20)
    assert looked("api_server_bound", replace(found, pods=(started, *found.pods[1:]))) == (set(), {C0})


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        (None, {D0}),
        ("all", {D0}),
        ("mlx5_1:1", {D0}),
        ("mlx5_0:1,mlx5_1", {D0}),
        ("mlx5_0:1", set()),
        ("^mlx5_1:1", set()),
        ("eth0", set()),
    ],
)
def test_a_port_counts_where_the_transport_may_use_it(devices: str | None, named: set[str]) -> None:
    """By `UCX_NET_DEVICES` of the pod, where that is known."""
    ports = (NicPort("mlx5_0/1", "active"), NicPort("mlx5_1/1", "down"))
    held = pod(
        "d0",
        "split",
        Role.DECODE,
        hardware=HardwareFacts(NOW_S, ports=ports),
        environment=EnvironmentFacts(NOW_S, {} if devices is None else {"UCX_NET_DEVICES": devices}, {}),
    )
    assert looked("rdma_port_down", fleet(held))[0] == named


def test_pods_are_drained_only_for_what_no_request_brings_about() -> None:
    """Facts of hardware and setup; none that is advice, and no stalled engine: one prompt can hold it up."""
    assert set(DRAINABLE) == {
        *("rdma_port_down", "transfers_failing", "unlike_hashing", "unlike_kv_formats", "unlike_models"),
    }


def test_handshakes_that_fail_are_failed_transfers() -> None:
    """No transfer begins, so that none fails; the plugin counts them."""
    none_begun = TransferWindow(count=0.0, bytes=0.0, seconds=0.0, failed=0.0, failed_handshakes=3.0)
    assert looked("transfers_failing", decode(transfers=none_begun))[0] == {D0}


def test_a_pod_behind_a_pause_is_not_far_away() -> None:
    """Most first tokens were late, and the earliest came as ever; behind a slow way none does."""

    def named(*first_tokens: float) -> set[str]:
        seen = view(first_token=distribution_of(first_tokens), first_token_course=course(*[0.7] * 6))
        pods = [pod("c0", engines=(engine(server_cpu_s=3.0),), requests=seen)]
        pods += [pod(name, engines=(engine(server_cpu_s=3.0),)) for name in ("c1", "c2")]
        return looked("late_to_engine", fleet(*pods))[0]

    assert named(*[0.7] * 32, *[0.06] * 8) == set()
    assert named(*[0.7] * 40) == {C0}


def test_the_way_to_all_pods_is_no_fault_of_one() -> None:
    """A gateway in another region is as far from each of them."""
    far = view(first_token=distribution_of([0.7] * 40), first_token_course=course(*[0.7] * 6))
    pods = [pod(f"c{number}", engines=(engine(server_cpu_s=3.0),), requests=far) for number in range(3)]
    assert looked("late_to_engine", fleet(*pods))[0] == set()


def test_a_prefill_pod_that_sends_slowly_is_named_in_place_of_all_decode_pods() -> None:
    """Beside another prefill pod; a decode pod that is slow beside its peers is named all the same."""
    normal = baseline()

    def named(seconds: float, *slow: str) -> set[str]:
        pods = [
            pod(name, "split", Role.PREFILL, requests=view(handover=distribution_of([held] * 20)))
            for name, held in (("p0", seconds), ("p1", 0.2))
        ]
        pods += [pod(name, "split", Role.DECODE, engines=(fetching(transfers=SLOW),)) for name in slow]
        return looked("slow_transfers", fleet(*pods), normal)[0]

    assert named(0.25) == set()
    assert named(0.6) == {"http://p0:8000"}
    assert named(0.6, "d0", "d1", "d2") == {"http://p0:8000"}
    assert named(0.6, "d0") == {"http://p0:8000", D0}
    assert named(0.25, "d0", "d1", "d2") == {D0, "http://d1:8000", "http://d2:8000"}


def test_a_quarter_fewer_sequences_are_no_fault() -> None:
    """It is what the recipe for KV pressure says to try. Half of them are, which slows requests where some wait."""
    assert looked("unlike_limits", fleet(pod("c0", flags=flags(max_num_seqs=48)))) == (set(), set())

    def severity(sequences: int, waiting: float) -> Severity | None:
        held = pod("c0", flags=flags(max_num_seqs=sequences), engines=(engine(waiting=gauge(waiting)),))
        (found,) = (
            each
            for each in BY_NAME["unlike_limits"].look(Scene(fleet(held), None, NOW_S))
            if isinstance(each, Indication)
        )
        return found.severity

    assert severity(32, 0.0) is severity(128, 5.0) is Severity.ADVICE
    assert severity(32, 5.0) is Severity.DEGRADING


def test_two_pods_of_unlike_limits_are_both_named() -> None:
    """Neither is the majority; a length that differs at all counts."""
    pods = (pod("c0", flags=flags(max_model_len=8_192)), pod("c1", flags=flags(max_model_len=8_000)))
    facts = replace(fleet(), pods=pods)
    assert looked("unlike_limits", facts)[0] == {C0, "http://c1:8000"}


def test_a_transfer_queue_on_all_decode_pods_is_not_sure() -> None:
    """What they fetch from may be slow; a queue on one of them is its own."""

    def confidences(*names: str) -> set[float]:
        pods = [pod(name, "split", Role.DECODE, engines=(fetching(fetches_queued=gauge(4.0)),)) for name in names]
        found = BY_NAME["transfer_queue"].look(Scene(fleet(*pods), None, NOW_S))
        return {each.confidence for each in found if isinstance(each, Indication)}

    assert confidences("d0") == confidences("d0", "d1") == {0.9}
    assert confidences("d0", "d1", "d2") == {0.65}


def test_lost_pairs_name_the_end_at_fault() -> None:
    """A decode pod beside others, or both ends where there is nothing to compare with: then it is not sure."""

    def found(prefill: dict[str, float], decode: dict[str, float]) -> dict[str, float]:
        roles = ((Role.PREFILL, prefill), (Role.DECODE, decode))
        pods = tuple(
            pod(name, "split", role, requests=view(pairs=20.0, lost_pairs=lost))
            for role, held in roles
            for name, lost in held.items()
        )
        looks = BY_NAME["transfers_stalled"].look(Scene(replace(fleet(), pods=pods), None, NOW_S))
        return {each.pod: each.confidence for each in looks if isinstance(each, Indication)}

    assert found({"p0": 9.0}, {"d0": 8.0, "d1": 1.0}) == {D0: 0.85}
    assert found({"p0": 9.0}, {"d0": 9.0}) == {"http://p0:8000": 0.65, D0: 0.65}
    assert found({"p0": 2.0}, {"d0": 1.0, "d1": 1.0}) == {}


def test_preemptions_count_where_readings_miss_the_full_cache() -> None:
    """An engine preempts when its cache is full; a second later it is not. Without requests that wait it had room."""
    seen = {"preemptions": 22.0, "finished": 29.0, "kv_usage": gauge(0.6)}
    assert looked("kv_pressure", chat(**seen, waiting_for_capacity=gauge(2.6)))[0] == {C0}
    assert looked("kv_pressure", chat(**seen, waiting_for_capacity=gauge(0.0)))[0] == set()


def test_few_drafts_count_where_they_show_that_acceptance_is_low() -> None:
    """An n-gram draft is made in a few steps of a hundred: chance hardly rejects all of 14, but all of 9.

    Low acceptance beside the peers needs as few; what is merely somewhat lower needs more than chance explains.
    """

    def found(drafts: float, accepted: float, peers: float | None = None) -> set[str]:
        held = SpeculationWindow(drafts, 5 * drafts, accepted)
        pods = [pod("c0", engines=(engine(speculation=held),))]
        if peers is not None:
            seen = SpeculationWindow(1_000.0, 5_000.0, 5_000.0 * peers)
            pods += [pod(name, engines=(engine(speculation=seen),)) for name in ("c1", "c2")]
        return looked("acceptance_decayed", fleet(*pods))[0]

    assert found(9.0, 0.0) == found(12.0, 0.0) == set()
    assert found(14.0, 0.0) == {C0}
    assert found(14.0, 6.0) == found(38.0, 18.0) == set()
    assert found(20.0, 20.0, peers=0.6) == {C0}
    assert found(20.0, 38.0, peers=0.6) == set()
    assert found(12.0, 20.0, peers=0.6) == {C0}
    assert found(10.0, 18.0, peers=0.6) == set()


def test_too_few_drafts_are_reported_as_missing() -> None:
    """Where the pod is known to speculate; one that does not has nothing to check."""
    few = (engine(speculation=SpeculationWindow(3.0, 15.0, 0.0)),)
    assert looked("acceptance_decayed", fleet(pod("c0", engines=few, flags=flags(speculative_method="ngram")))) == (
        set(),
        {C0},
    )
    assert looked("acceptance_decayed", fleet(pod("c0", engines=few))) == (set(), set())


@pytest.mark.parametrize(("computed", "named"), [(15_000.0, {C0}), (2_000.0, set())])
def test_a_store_that_gives_what_the_cache_has_lost_leaves_no_thrashing(computed: float, named: set[str]) -> None:
    """The pod computes no more of its prompts than its peers: offloading, the first step, is there and works."""
    facts = chat(cache_hits=1_000.0, computed_tokens=computed)
    assert looked("prefix_cache_thrashing", facts, baseline())[0] == named


def test_two_pods_that_differ_are_each_compared_with_the_other() -> None:
    """Neither value is the pool's; that of a majority is."""

    def compared(*types: str) -> dict[str, tuple[object, object]]:
        pods = tuple(pod(f"c{number}", flags=flags(kv_dtype=held)) for number, held in enumerate(types))
        found = BY_NAME["unlike_kv_formats"].look(Scene(FleetFacts(NOW_S, pods), None, NOW_S))
        return {
            each.pod: (each.evidence[0].value, each.evidence[0].compared)
            for each in found
            if isinstance(each, Indication)
        }

    assert compared("fp8", "auto") == {C0: ("fp8", "auto"), "http://c1:8000": ("auto", "fp8")}
    assert compared("fp8", "auto", "auto") == {C0: ("fp8", "auto")}


def test_pods_that_make_vectors_have_no_streams_and_no_prefix_cache() -> None:
    """Chunked prefill and the prefix cache are off for most of their models, and they generate nothing."""
    off = flags(chunked_prefill=False, prefix_caching=False, prompt_tokens_details=False, scheduling_policy="priority")

    def named(since_start: float | None) -> set[str]:
        held = pod("c0", flags=off, engines=(engine(generated_since_start=since_start),))
        recipes = ("chunked_prefill_off", "prefix_cache_off", "feature_without_flag")
        return {name for name in recipes if looked(name, fleet(held))[0]}

    assert named(0.0) == set()
    assert named(4_000.0) == named(None) == {"chunked_prefill_off", "prefix_cache_off", "feature_without_flag"}


def test_short_prompts_leave_a_prefill_pool_unused_without_a_fault() -> None:
    """A pair does not pay for them; where lengths are not reported it is not sure."""

    def found(lengths: Distribution | None) -> set[float]:
        held = fleet(
            pod("p0", "split", Role.PREFILL, engines=(engine(computed_tokens=0.0),)),
            pod("d0", "split", Role.DECODE, engines=(fetching(computed_tokens=9_000.0, prompt_lengths=lengths),)),
        )
        looks = BY_NAME["prefill_pool_unused"].look(Scene(held, None, NOW_S))
        return {each.confidence for each in looks if isinstance(each, Indication)}

    limits = (100.0, 500.0, 1_000.0, 5_000.0)
    assert found(distribution_of([300.0] * 30, limits)) == found(distribution_of([300.0] * 30 + [3e3], limits)) == set()
    assert found(distribution_of([300.0] * 30 + [3e3] * 2, limits)) == {0.9}
    assert found(None) == {0.65}


def test_a_transfer_takes_one_port_of_a_host() -> None:
    """A host with eight has no slow transfers for it: there is nothing to compare with on a fleet of one decode pod."""

    def named(bytes_per_s: float, ports: int) -> set[str]:
        hardware = HardwareFacts(NOW_S, ports=(NicPort("mlx5_0", "active", 400.0),) * ports)
        moved = TransferWindow(count=30.0, bytes=30 * bytes_per_s, seconds=30.0, descriptors=1_000.0, failed=0.0)
        held = pod(
            "d0",
            "split",
            Role.DECODE,
            engines=(fetching(transfers=moved),),
            hardware=hardware,
            environment=EnvironmentFacts(NOW_S, {"UCX_TLS": "rc,tcp"}, {}),
        )
        return looked("tcp_fallback", FleetFacts(NOW_S, (held,)))[0]

    assert named(40e9, 8) == named(40e9, 1) == set()
    assert named(2e9, 8) == named(2e9, 1) == {D0}


@pytest.mark.parametrize(
    ("connector", "named"), [("NixlConnector", {C0}), ("OffloadingConnector", set()), (None, set())]
)
def test_a_port_counts_where_the_connector_sends_kv_to_other_hosts(connector: str | None, named: set[str]) -> None:
    """A pod that offloads to its own host's memory is not drained for a cable."""
    down = HardwareFacts(NOW_S, ports=(NicPort("mlx5_0", "down"),))
    assert looked("rdma_port_down", fleet(pod("c0", flags=flags(connector=connector), hardware=down)))[0] == named


def test_a_budget_is_not_compared_with_the_steps_of_others() -> None:
    """Only one pod has an agent that tells its budget; the steps of all are alike."""
    pods = [
        pod(
            f"c{number}",
            flags=flags(max_num_batched_tokens=8_192 if number == 0 else None),
            engines=(engine(token_gap=TAIL),),
        )
        for number in range(3)
    ]
    assert looked("coarse_chunks", fleet(*pods))[0] == set()
    large = distribution_of([8.0] * 900 + [5_000.0] * 100, (1.0, 16.0, 128.0, 1024.0, 8192.0))
    pods[0] = replace(pods[0], engines=(engine(token_gap=TAIL, iteration_tokens=large),))
    assert looked("coarse_chunks", fleet(*pods))[0] == {C0}


def test_a_redis_that_does_not_answer_is_slow() -> None:
    """Each ping takes the time limit, so that few of them end within the window."""
    gateways = (GatewayLoad(START_S, NOW_S, cpu=0.1, redis=distribution_of([2.0] * 4)),)
    assert looked("redis_slow", fleet(gateways=gateways))[0] == {""}
