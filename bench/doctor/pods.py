"""A simulated pod in virtual time with a metrics page: engines, their books, and what it declares of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from bench.doctor.plans import NIC_GBIT_S, PodPlan
from diagnosis.distribution import Distribution
from diagnosis.facts import BuildFacts, EngineFlags, EnvironmentFacts, HardwareFacts, NicPort
from diagnosis.readings import HISTOGRAMS, TRANSFER_SUMS, EngineCounts
from routing.facts import Role
from simulator.books import Books
from simulator.engine import Engine
from simulator.engine_profile import slowed
from simulator.exposition import Subject, TransfersShown, render_samples
from simulator.options import Options
from simulator.profile import Profile
from simulator.sequence import Milestone, MilestoneKind, Sequence
from simulator.virtual_pod import LOST, VirtualPod

Listener = Callable[[Milestone], None]


class SimulatedRank:
    """One engine and its books."""

    def __init__(self, profile: Profile, plan: PodPlan, loop: asyncio.AbstractEventLoop) -> None:
        self.pod = VirtualPod(profile, loop, plan.link)
        self.pod.loses_fetches = plan.loses_fetches
        self.pod.keeps_transfers = plan.is_stuck
        self.books = Books(1.0)
        self.pod.engine.step_book = self.books.steps
        self.constrained = 0
        self.handled_s = 0.0
        """CPU seconds that requests took of the API server."""
        """Running requests whose output a grammar restricts; the next: all."""
        self.outstanding = 0

    @property
    def engine(self) -> Engine:
        return self.pod.engine

    def submit(self, sequence: Sequence, listener: Listener, source: tuple[VirtualPod, str] | None = None) -> None:
        """Queue a sequence, and enter it into the books when it ends."""
        self.handled_s += self.engine.profile.request_handling_s(sequence.prompt_tokens)
        arrived_s = 0.0
        first: list[Milestone] = []
        self.outstanding += 1

        def reach(milestone: Milestone) -> None:
            if milestone.kind is MilestoneKind.FIRST_TOKEN:
                first.append(milestone)
            else:
                self.outstanding -= 1
                if milestone.reason != LOST:
                    self.books.enter(sequence, arrived_s, first[0] if first else None, milestone)
            listener(milestone)

        arrived_s = self.pod.submit(sequence, reach, source)

    def abort(self, sequence_id: str) -> None:
        """Abort a sequence that runs, without its listener."""
        self.outstanding -= 1
        self.pod.abort(sequence_id)


@dataclass(slots=True)
class SimulatedPod:
    """One pod that lives at an address."""

    plan: PodPlan
    ranks: list[SimulatedRank]
    ready_since_s: float
    waiting: list[Callable[[], None]] | None = None
    """What was sent to it while its process is paused; None while it runs."""

    def pause(self) -> None:
        """Stop the whole process: requests wait in its socket, and its metrics page is not answered."""
        self.waiting = []
        for rank in self.ranks:
            rank.pod.pause()

    def unpause(self) -> None:
        """Go on with what has waited."""
        waiting, self.waiting = self.waiting or [], None
        for rank in self.ranks:
            rank.pod.unpause()
        for submit in waiting:
            submit()


def start_pod(plan: PodPlan, loop: asyncio.AbstractEventLoop, now_s: float) -> SimulatedPod:
    """Start a pod as planned."""
    profile = slowed(plan.profile, 1 + plan.skew) if plan.is_coupled else plan.profile
    return SimulatedPod(plan, [SimulatedRank(profile, plan, loop) for _ in range(plan.ranks)], now_s)


def balances_of(pod: SimulatedPod, draws: Random) -> list[float]:
    """Return the balance of experts of each rank, as its agent reads it from the log; empty without experts."""
    if not pod.plan.is_coupled:
        return []
    drawn = 1 / (1 + pod.plan.skew) * draws.uniform(0.97, 1.0)
    return [round(drawn, 4)] * pod.plan.ranks


def page_of(pod: SimulatedPod, balances: list[float]) -> bytes:
    """Return the pod's metrics page, with the balance of experts of its ranks."""
    plan = pod.plan
    shown = None
    if plan.role is not Role.EITHER:
        shown = TransfersShown("NixlConnector", pod.ranks[0].pod.wire.counts)
    for rank in pod.ranks:
        rank.pod.statistics()
    options = Options(profile=plan.profile, models=(plan.pool,), engines=plan.ranks)
    page = render_samples(Subject(options, pod.ranks, 0, (), shown))
    lines = "".join(f'hearth_expert_balance{{engine="{rank}"}} {held:.4f}\n' for rank, held in enumerate(balances))
    return page + lines.encode() + f"process_cpu_seconds_total {server_cpu_s(pod)}\n".encode()


def server_cpu_s(pod: SimulatedPod) -> float:
    """Return the CPU seconds of the pod's API server: what its requests have taken."""
    return sum(rank.handled_s for rank in pod.ranks)


def counts_of(pod: SimulatedPod, balances: list[float]) -> dict[int, EngineCounts]:
    """Return what the production parser reads from `page_of`, without the text: it takes most of a long run."""
    return {number: _counts(pod, number, balances) for number in range(len(pod.ranks))}


def _counts(pod: SimulatedPod, number: int, balances: list[float]) -> EngineCounts:
    plan, rank = pod.plan, pod.ranks[number]
    seen, steps, profile = rank.pod.statistics(), rank.books.steps, plan.profile
    computed = max(seen.prompt_tokens - seen.prefix_hit_tokens - seen.external_tokens, 0)
    scalars: dict[str, float] = {
        "num_requests_running": seen.running,
        "num_requests_waiting": seen.waiting,
        "kv_cache_usage_perc": seen.kv_usage,
        "num_requests_waiting_by_reason capacity": seen.waiting - seen.fetching,
        "num_requests_waiting_by_reason deferred": seen.fetching,
        "num_preemptions": seen.preemptions,
        "prefix_cache_queries": seen.prefix_query_tokens,
        "prefix_cache_hits": seen.prefix_hit_tokens,
        "external_prefix_cache_queries": seen.store_query_tokens + seen.fetched_tokens,
        "external_prefix_cache_hits": seen.external_tokens,
        "prompt_tokens": seen.prompt_tokens,
        "generation_tokens": seen.generation_tokens,
        "prompt_tokens_by_source local_compute": computed,
        "prompt_tokens_by_source local_cache_hit": seen.prefix_hit_tokens,
        "prompt_tokens_by_source external_kv_transfer": seen.external_tokens,
        **{f"request_success {reason}": count for reason, count in rank.books.finished.items()},
        **{f"admission_rejections max_num_queued_{what}": 0.0 for what in ("reqs", "tokens")},
    }
    if number == 0:
        scalars["process_cpu_seconds"] = server_cpu_s(pod)
    if profile.speculative_tokens:
        scalars["spec_decode_num_drafts"] = steps.drafts
        scalars["spec_decode_num_draft_tokens"] = steps.draft_tokens
        scalars["spec_decode_num_accepted_tokens"] = steps.accepted_tokens
    if profile.host_kv_tokens:
        scalars["kv_offload_load_time"] = rank.engine.host_load_s
    if number < len(balances):
        scalars["hearth_expert_balance"] = balances[number]
    books = {name: held for name, held in rank.books.histograms.items() if name in READ_HISTOGRAMS}
    books |= {"inter_token_latency_seconds": steps.gaps, "iteration_tokens_total": steps.tokens}
    histograms = {name: Distribution(each.limits, tuple(each.counts), each.total) for name, each in books.items()}
    if plan.role is not Role.EITHER:
        _add_transfers(pod, number, scalars, histograms)
    return EngineCounts(scalars, histograms, _config(profile))


READ_HISTOGRAMS = frozenset(HISTOGRAMS.values())


def _add_transfers(
    pod: SimulatedPod, number: int, scalars: dict[str, float], histograms: dict[str, Distribution]
) -> None:
    rank, counts = pod.ranks[number], pod.ranks[0].pod.wire.counts
    fetching, queued = rank.engine.statistics().fetching, counts.queued if number == 0 else 0
    stages = {"waiting_to_start": min(queued, fetching), "in_progress": max(fetching - queued, 0)}
    for stage, count in {**stages, "completed_waiting": 0}.items():
        scalars[f"num_requests_kv_fetch_by_stage {stage}"] = count
    if number:
        return
    scalars["nixl_num_kv_expired_reqs"] = counts.expired
    scalars["nixl_num_notifications_after_expiry"] = counts.after_expiry
    scalars["nixl_num_failed_transfers"] = counts.failed
    totals = (counts.transfer_s, counts.bytes_moved, counts.post_s, counts.descriptors)
    for name, total in zip(TRANSFER_SUMS.values(), totals, strict=True):
        histograms[name] = Distribution((), (counts.transfers,), total)


def _config(profile: Profile) -> dict[str, str]:
    return {
        "num_gpu_blocks": str(profile.kv_blocks),
        "block_size": str(profile.block_size),
        "kv_cache_size_tokens": str(profile.kv_blocks * profile.block_size),
        "hash_block_size": str(profile.block_size),
        "prefix_caching_hash_algo": "sha256",
        "enable_prefix_caching": str(profile.caches_prefixes),
        "cache_dtype": "auto",
    }


def flags_of(plan: PodPlan, read_at_s: float) -> EngineFlags:
    """Return what the pod's command line says."""
    profile = plan.profile
    held: dict[str, Any] = {
        "chunked_prefill": plan.is_chunked,
        "max_num_batched_tokens": profile.max_num_batched_tokens,
        "max_num_seqs": profile.max_num_seqs,
        "max_model_len": 32_768,
        "speculative_method": "eagle3" if profile.speculative_tokens else "",
        "speculative_tokens": profile.speculative_tokens or None,
        "expert_parallel": plan.is_coupled,
        "eplb": False,
        "tp": 1,
        "pp": 1,
        "dp": plan.ranks,
        "attention_backend": "FLASH_ATTN",
        "kv_dtype": "fp8",
        "connector": None if plan.role is Role.EITHER else "NixlConnector",
        "offloading_gib": 32.0 if profile.host_kv_tokens else None,
        "scheduling_policy": "priority",
        "prompt_tokens_details": True,
        "kv_events": True,
        "prefix_caching": profile.caches_prefixes,
        "block_size": profile.block_size,
        "kv_capacity_tokens": profile.kv_blocks * profile.block_size,
        "hash_algorithm": "sha256_cbor",
    }
    return EngineFlags(read_at_s, **(held | dict(plan.flags)))


def build_of(plan: PodPlan, read_at_s: float) -> BuildFacts:
    """Return what runs in the pod."""
    held: dict[str, Any] = {
        "version": "0.32.0",
        "build": "fc2a2d97",
        "image_digest": "sha256:aa11",
        "model_config_digest": "c0ffee",
        "template_digest": "7e3p",
        "revision": "main-1",
        "rollout": "r1",
        "tokenizer_digest": "70c3",
    }
    return BuildFacts(read_at_s, **(held | dict(plan.build)))


def environment_of(plan: PodPlan, read_at_s: float) -> EnvironmentFacts:
    """Return the pod's environment, by allow-list."""
    transports = {} if plan.role is Role.EITHER else {"UCX_TLS": "rc,cuda_copy,cuda_ipc"}
    return EnvironmentFacts(read_at_s, transports | dict(plan.environment), {"PYTHONHASHSEED": plan.seed_digest})


def hardware_of(plan: PodPlan, read_at_s: float) -> HardwareFacts:
    """Return the pod's network cards."""
    port = NicPort("mlx5_0", plan.port_state, NIC_GBIT_S)
    return HardwareFacts(read_at_s, host=plan.address.partition("//")[2], gpu="H100", gpus=1, ports=(port,))


def slower(plan: PodPlan, factor: float) -> PodPlan:
    """Return a plan whose GPU takes `factor` times as long for everything."""
    return replace(plan, profile=slowed(plan.profile, factor))
