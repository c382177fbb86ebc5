"""The faults that this bench injects: what each changes, and what must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from bench.doctor.collector import Collector
from bench.doctor.fleet import Fleet, GatewayCosts
from bench.doctor.plans import LINK, PodPlan, healthy_plans
from bench.doctor.pods import slower
from bench.doctor.traffic import Load

PLANS = healthy_plans()


@dataclass(frozen=True, slots=True)
class Injected:
    """What was done, and to which pods; empty: to the fleet."""

    pods: tuple[str, ...]
    undo: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a fault is injected, and draws to choose a pod."""

    fleet: Fleet
    collector: Collector
    draws: Random


Inject = Callable[[Stage], Injected]


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault. `enough_s` seconds of traffic show it; 60 s later it must be named."""

    recipe: str
    inject: Inject
    enough_s: float = 45.0
    variant: str = ""
    lingers: bool = False
    """Its effect outlasts it: requests that arrived meanwhile still run, so it has no time in which it must clear."""

    @property
    def name(self) -> str:
        """Return recipe and variant."""
        return f"{self.recipe} ({self.variant})" if self.variant else self.recipe


def _pods(pool: str, prefix: str = "") -> list[str]:
    return [address for address, plan in PLANS.items() if plan.pool == pool and prefix in address]


def _restarted(pool: str, change: Callable[[PodPlan], PodPlan], prefix: str = "") -> Inject:
    """Start one pod of a pool again with another plan."""

    def inject(stage: Stage) -> Injected:
        address = stage.draws.choice(_pods(pool, prefix))
        before = stage.fleet.pods[address].plan
        stage.fleet.restart(change(before))
        return Injected((address,), lambda: stage.fleet.restart(before))

    return inject


def _declared(pool: str, change: Callable[[PodPlan], PodPlan], prefix: str = "") -> Inject:
    """Let one pod of a pool declare something else; the fact is the fault."""

    def inject(stage: Stage) -> Injected:
        address = stage.draws.choice(_pods(pool, prefix))
        before = stage.fleet.pods[address].plan
        stage.fleet.declare(change(before))
        return Injected((address,), lambda: stage.fleet.declare(before))

    return inject


def _loaded(change: Callable[[Load], None], *pods: str) -> Inject:
    """Change the traffic."""

    def inject(stage: Stage) -> Injected:
        before = stage.fleet.traffic.load
        stage.fleet.traffic.load = replace(before, rates=dict(before.rates), answer_factors=dict(before.answer_factors))
        change(stage.fleet.traffic.load)

        def undo() -> None:
            stage.fleet.traffic.load = before

        return Injected(pods, undo)

    return inject


def _paused(pool: str, rank: int) -> Inject:
    """Stop one engine; its API server goes on."""

    def inject(stage: Stage) -> Injected:
        address = stage.draws.choice(_pods(pool))
        pod = stage.fleet.pods[address].ranks[rank].pod
        pod.pause()
        return Injected((address,), pod.unpause)

    return inject


def _failing(stage: Stage) -> Injected:
    address = stage.draws.choice(_pods("split", "-d"))
    pod = stage.fleet.pods[address].ranks[0].pod
    pod.loses_fetches = 3

    def undo() -> None:
        pod.loses_fetches = 0

    return Injected((address,), undo)


def _one_decode_pod(stage: Stage) -> Injected:
    """Send all to one decode pod, and a quarter more: its link carries less than what arrives."""
    decode = _pods("split", "-d")
    left = stage.draws.choice(decode)
    stage.fleet.excluded = {address for address in decode if address != left}
    before = stage.fleet.traffic.load
    stage.fleet.traffic.load = replace(before, rates=before.rates | {"split": 3.75})

    def undo() -> None:
        stage.fleet.excluded.clear()
        stage.fleet.traffic.load = before

    return Injected((left,), undo)


def _slow_source(stage: Stage) -> Injected:
    """Give one prefill pod half of its link, at a load that it still carries."""
    address = stage.draws.choice(_pods("split", "-p"))
    plan, load = stage.fleet.pods[address].plan, stage.fleet.traffic.load
    stage.fleet.restart(replace(plan, link=replace(LINK, bytes_per_s=0.5 * LINK.bytes_per_s)))
    stage.fleet.traffic.load = replace(load, rates=load.rates | {"split": 1.5})

    def undo() -> None:
        stage.fleet.restart(plan)
        stage.fleet.traffic.load = load

    return Injected((address,), undo)


def _pinned_rank(stage: Stage) -> Injected:
    stage.fleet.pins_rank = True

    def undo() -> None:
        stage.fleet.pins_rank = False

    return Injected(tuple(_pods("moe")), undo)


def _without_prefill(stage: Stage) -> Injected:
    stage.fleet.uses_prefill = False

    def undo() -> None:
        stage.fleet.uses_prefill = True

    return Injected(tuple(_pods("split", "-p")), undo)


def _costly(costs: GatewayCosts) -> Inject:
    def inject(stage: Stage) -> Injected:
        before = stage.fleet.costs
        stage.fleet.costs = costs

        def undo() -> None:
            stage.fleet.costs = before

        return Injected((), undo)

    return inject


def _wrong_clock(stage: Stage) -> Injected:
    address = stage.draws.choice(list(PLANS))
    stage.collector.clock_offsets = {address: stage.draws.choice((-1, 1)) * stage.draws.uniform(1.5, 20.0)}
    return Injected((address,), stage.collector.clock_offsets.clear)


def _one_service(stage: Stage) -> Injected:
    for address in _pods("split"):
        stage.fleet.declare(replace(stage.fleet.pods[address].plan, metadata_service="etcd-0:2379"))
    stage.collector.single_services = frozenset({"etcd-0:2379"})

    def undo() -> None:
        stage.collector.single_services = frozenset()

    return Injected((), undo)


def _engine(**changes: object) -> Callable[[PodPlan], PodPlan]:
    return lambda plan: replace(plan, profile=replace(plan.profile, **changes))  # type: ignore[arg-type]


def _link(**changes: object) -> Callable[[PodPlan], PodPlan]:
    return lambda plan: replace(plan, link=replace(LINK, **changes))  # type: ignore[arg-type]


def _unchunked(plan: PodPlan) -> PodPlan:
    return replace(plan, is_chunked=False, profile=replace(plan.profile, max_num_batched_tokens=131_072))


def _over_tcp(plan: PodPlan) -> PodPlan:
    return replace(plan, link=replace(LINK, bytes_per_s=1.7e8), environment={"UCX_TLS": "rc,cuda_copy,tcp"})


def _port_down(plan: PodPlan) -> PodPlan:
    return replace(plan, link=replace(LINK, bytes_per_s=0.4 * LINK.bytes_per_s), port_state="down")


def _salted(load: Load) -> None:
    load.is_salted = True


def _constrained(load: Load) -> None:
    load.constrained = 0.6


def _long_prompts(load: Load) -> None:
    load.long_prompts_per_s = 1.0


def _long_answers(load: Load) -> None:
    load.rates["moe"] = 3.4
    load.answer_factors["moe"] = 5.0


FAULTS: tuple[InjectedFault, ...] = (
    InjectedFault("kv_pressure", _restarted("chat", _engine(kv_capacity_tokens=4_160))),
    InjectedFault("chunked_prefill_off", _restarted("moe", _unchunked), 90.0),
    InjectedFault("coarse_chunks", _restarted("moe", _engine(max_num_batched_tokens=8_192)), 90.0),
    InjectedFault("decode_starved_by_prefill", _loaded(_long_prompts, "http://chat-0:8000")),
    InjectedFault("hot_expert", _restarted("moe", lambda plan: replace(plan, skew=1.4))),
    InjectedFault("dp_rank_stalled", _paused("moe", 1)),
    InjectedFault("engine_stalled", _paused("chat", 0)),
    InjectedFault("idle_ranks", _pinned_rank, 60.0),
    InjectedFault("api_server_bound", _restarted("chat", _engine(request_s=0.6)), 60.0),
    InjectedFault("late_to_engine", _restarted("chat", lambda plan: replace(plan, reach_s=0.6)), 75.0),
    InjectedFault("transfer_queue", _one_decode_pod, 60.0, lingers=True),
    InjectedFault("transfers_failing", _failing),
    InjectedFault("transfers_stalled", _restarted("split", lambda plan: replace(plan, is_stuck=True), "-p"), 60.0),
    InjectedFault("slow_transfers", _restarted("split", _link(bytes_per_s=5e8), "-d"), 60.0),
    InjectedFault("slow_transfers", _slow_source, 90.0, "from a prefill pod"),
    InjectedFault("tcp_fallback", _restarted("split", _over_tcp, "-d"), 75.0),
    InjectedFault("rdma_port_down", _restarted("split", _port_down, "-d"), 60.0),
    InjectedFault("uncollated_transfers", _restarted("split", _link(descriptor_tokens=8), "-d"), 60.0),
    InjectedFault("single_service", _one_service, 15.0),
    InjectedFault("acceptance_decayed", _restarted("chat", _engine(acceptance_rate=0.25)), 60.0),
    InjectedFault("constrained_on_speculating", _loaded(_constrained, *_pods("chat"))),
    InjectedFault("speculation_on_saturated_batch", _loaded(_long_answers, *_pods("moe")), 150.0, lingers=True),
    InjectedFault("prefix_cache_off", _restarted("chat", _engine(caches_prefixes=False))),
    InjectedFault("prefix_cache_thrashing", _restarted("rag", _engine(kv_capacity_tokens=13_056)), 150.0),
    InjectedFault("salts_split_prefixes", _loaded(_salted, *_pods("chat"))),
    InjectedFault("store_without_use", _restarted("rag", _engine(host_load_tokens_per_s=1_500.0)), 150.0, "slow"),
    # As long as it takes to look up four times the tokens of the KV cache, from an empty cache on.
    InjectedFault("store_without_use", _restarted("rag", _engine(host_kv_tokens=3_200)), 210.0, "small"),
    InjectedFault("prefill_pool_unused", _without_prefill),
    InjectedFault("unlike_hashing", _declared("split", lambda plan: replace(plan, seed_digest="0dd")), 15.0),
    InjectedFault(
        "unlike_builds", _declared("chat", lambda plan: replace(plan, build={"image_digest": "sha256:bb22"})), 15.0
    ),
    InjectedFault(
        "unlike_kernels",
        _declared("chat", lambda plan: replace(plan, flags={"attention_backend": "TRITON_ATTN"})),
        15.0,
    ),
    InjectedFault(
        "unlike_kv_formats", _declared("split", lambda plan: replace(plan, flags={"kv_dtype": "bfloat16"})), 15.0
    ),
    InjectedFault(
        "unlike_models", _declared("rag", lambda plan: replace(plan, build={"template_digest": "0dd"})), 15.0
    ),
    InjectedFault(
        "unlike_models",
        _declared("rag", lambda plan: replace(plan, build={"tokenizer_digest": "0dd"})),
        15.0,
        "tokenizer",
    ),
    InjectedFault("unlike_limits", _restarted("chat", _engine(max_num_seqs=3)), 45.0, "sequences"),
    InjectedFault(
        "unlike_limits", _declared("chat", lambda plan: replace(plan, flags={"max_model_len": 8_192})), 15.0, "length"
    ),
    InjectedFault("gateway_saturated", _costly(GatewayCosts(request_s=0.078))),
    InjectedFault("redis_slow", _costly(GatewayCosts(redis_s=0.08))),
    InjectedFault("clocks_apart", _wrong_clock, 15.0),
    InjectedFault(
        "feature_without_flag", _declared("chat", lambda plan: replace(plan, flags={"scheduling_policy": "fcfs"})), 15.0
    ),
    InjectedFault("slower_than_peers", _restarted("chat", lambda plan: slower(plan, 2.0)), 75.0),
    InjectedFault("slower_than_peers", _restarted("chat", lambda plan: slower(plan, 1.7)), 75.0, "throttled"),
)
"""All faults; recipes for which the simulator has two ways to bring them about stand here twice."""


def _faster(load: Load) -> None:
    load.rates = {pool: 1.6 * rate for pool, rate in load.rates.items()}


def _slower(load: Load) -> None:
    load.rates = {pool: 0.5 * rate for pool, rate in load.rates.items()}


def _longer_prompts(load: Load) -> None:
    load.prompt_factor = 1.7


def _longer_answers(load: Load) -> None:
    load.answer_factors = dict.fromkeys(load.rates, 1.8)


def _new_documents(load: Load) -> None:
    load.has_new_documents = True


def _other_mix(load: Load) -> None:
    load.rates |= {"chat": 2.0, "split": 4.2}


CHANGES: dict[str, Inject] = {
    "requests come 1.6 times as fast": _loaded(_faster),
    "half as many requests": _loaded(_slower),
    "longer prompts": _loaded(_longer_prompts),
    "longer answers": _loaded(_longer_answers),
    "documents that do not repeat": _loaded(_new_documents),
    "another mix of pools": _loaded(_other_mix),
}
"""Changes of the workload without a fault."""

_RECIPES_BY_POOL = {
    "chat": {
        *("kv_pressure", "decode_starved_by_prefill", "engine_stalled", "api_server_bound", "acceptance_decayed"),
        *("constrained_on_speculating", "prefix_cache_off", "salts_split_prefixes", "unlike_builds", "unlike_kernels"),
        *("feature_without_flag", "slower_than_peers", "late_to_engine", "unlike_limits"),
    },
    "moe": {
        *("chunked_prefill_off", "coarse_chunks", "hot_expert", "dp_rank_stalled", "idle_ranks"),
        "speculation_on_saturated_batch",
    },
    "rag": {"prefix_cache_thrashing", "store_without_use", "unlike_models"},
    "split": {
        *("transfer_queue", "transfers_failing", "transfers_stalled", "slow_transfers", "tcp_fallback"),
        *("uncollated_transfers", "single_service", "prefill_pool_unused", "unlike_hashing", "unlike_kv_formats"),
        "rdma_port_down",
    },
}

POOL_OF = {
    fault.name: next(
        (pool for pool, recipes in _RECIPES_BY_POOL.items() if fault.recipe in recipes),
        fault.recipe,
    )
    for fault in FAULTS
}
"""The pool that a fault is injected into; its own name where it is none."""
