"""Plays one trace: on a real engine over HTTP, on a simulated one in virtual time. Both give the same figures."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.truth.workloads import at_load, token_ids
from simulator.clock import run_virtually
from simulator.processor import machine_ticks, used_s
from simulator.profile import Profile
from simulator.profiling.pod_client import PodClient, Timing
from simulator.replay import Setting, engine_blocks, play
from simulator.sequence import Milestone, MilestoneKind
from simulator.sequence import Sequence as EngineSequence
from simulator.spread import at_share
from simulator.traces import Trace
from simulator.virtual_pod import VirtualPod

SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


@dataclass(frozen=True, slots=True)
class Request:
    """What became of one request; seconds. `tpot_s` is None with one token."""

    ttft_s: float
    tpot_s: float | None
    cached_tokens: int
    output_tokens: int
    ended_s: float
    """From the start of the trace."""


@dataclass(frozen=True, slots=True)
class Run:
    """One trace played once. Shares are of a core's time."""

    figures: dict[str, float]
    """`ttft p50` and so on in seconds, `throughput` in output tokens a second, `cached` tokens, `preemptions`."""
    late_s: float = 0.0
    """How long after it was due the latest request was sent."""
    client_share: float = 0.0
    others_share: float = 0.0
    """Processor time of everybody but the pods and the client."""


def figures_of(requests: Sequence[Request], preemptions: float) -> dict[str, float]:
    """Sum requests up."""
    ttft = sorted(one.ttft_s for one in requests)
    tpot = sorted(one.tpot_s for one in requests if one.tpot_s is not None)
    length_s = max(one.ended_s for one in requests)
    return {
        **{f"ttft {name}": at_share(ttft, share) for name, share in SHARES},
        **{f"tpot {name}": at_share(tpot, share) for name, share in SHARES},
        "throughput": sum(one.output_tokens for one in requests) / length_s,
        "cached": float(sum(one.cached_tokens for one in requests)),
        "preemptions": preemptions,
    }


# --- In virtual time --------------------------------------------------------------------------------------------------


def play_simulated(trace: Trace, profile: Profile) -> Run:
    """Play it on one simulated engine, without a gateway."""
    return run_virtually(_play_simulated(trace, profile))


async def _play_simulated(trace: Trace, profile: Profile) -> Run:
    loop = asyncio.get_running_loop()
    pod, ends, done = VirtualPod(profile, loop), dict[str, list[Milestone]](), asyncio.Event()

    def listen(milestone: Milestone) -> None:
        ends.setdefault(milestone.sequence_id, []).append(milestone)
        if milestone.kind is MilestoneKind.FINISHED and all(
            len(ends.get(str(number), ())) == 2 for number in range(len(trace.arrivals))
        ):
            done.set()

    for number, arrival in enumerate(trace.arrivals):
        if (wait_s := arrival.at_s - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        blocks = engine_blocks(arrival, trace.block_tokens or profile.block_size, profile.block_size)
        pod.submit(EngineSequence(str(number), arrival.prompt_tokens, arrival.output_tokens, blocks), listen)
    await done.wait()
    requests = []
    for number, arrival in enumerate(trace.arrivals):
        first, last = ends[str(number)]
        gaps = last.output_tokens - 1
        tpot_s = (last.at - first.at) / gaps if gaps else None
        requests.append(Request(first.at - arrival.at_s, tpot_s, last.cached_tokens, last.output_tokens, last.at))
    return Run(figures_of(requests, pod.statistics().preemptions))


def play_simulated_fleet(trace: Trace, profile: Profile, pods: int) -> Run:
    """Play it on several simulated engines behind the gateway's router, default routing."""
    replay = play(trace, Setting("warm", pods, profile))
    requests = [
        Request(
            one.ttft_s or 0.0,
            one.tpot_s,
            one.cached_tokens or 0,
            one.output_tokens,
            one.arrived_s + (one.duration_s or 0.0),
        )
        for one in replay.records
        if one.is_answered
    ]
    return Run(figures_of(requests, 0.0))


def sustained_s(trace: Trace, profile: Profile) -> float:
    """Return how long the engine takes for all of a trace's requests where they come in order and never wait."""
    run = play_simulated(at_load(trace, None, 1.0), profile)
    return sum(one.output_tokens for one in trace.arrivals) / run.figures["throughput"]


# --- On a real engine -------------------------------------------------------------------------------------------------


async def play_real(trace: Trace, client: PodClient, pods: Sequence[PodClient], pids: Sequence[int], seed: int) -> Run:
    """Play it over HTTP, with the prompts of `seed`; `pods` are those whose caches and counters it concerns."""
    for pod in pods:
        await pod.forget_prefixes()
    prompts = [token_ids(arrival, number, seed) for number, arrival in enumerate(trace.arrivals)]
    before = [await pod.metrics() for pod in pods]
    loop, own_s, pods_s, began_s = asyncio.get_running_loop(), time.process_time(), used_s(pids), time.monotonic()
    machine = _machine_s()
    start_s, late_s, tasks = loop.time() + 0.05, 0.0, list[asyncio.Task[Timing]]()
    for arrival, prompt in zip(trace.arrivals, prompts, strict=True):
        if (wait_s := start_s + arrival.at_s - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        late_s = max(late_s, loop.time() - start_s - arrival.at_s)
        tasks.append(loop.create_task(client.complete(prompt, arrival.output_tokens)))
    timings = await asyncio.gather(*tasks)
    length_s = time.monotonic() - began_s
    own_s = time.process_time() - own_s
    pods_s = (used_s(pids) or 0.0) - (pods_s or 0.0)
    others_s = max(_machine_s() - machine - own_s - pods_s, 0.0)
    after = [await pod.metrics() for pod in pods]
    requests = [
        Request(
            one.first_s - start_s - arrival.at_s,
            (one.events_s[-1] - one.first_s) / (one.output_tokens - 1) if one.output_tokens > 1 else None,
            one.cached_tokens,
            one.output_tokens,
            one.events_s[-1] - start_s,
        )
        for arrival, one in zip(trace.arrivals, timings, strict=True)
    ]
    name = "vllm:num_preemptions_total"
    preemptions = sum(late.get(name, 0.0) - early.get(name, 0.0) for early, late in zip(before, after, strict=True))
    return Run(figures_of(requests, preemptions), late_s, own_s / length_s, others_s / length_s)


def _machine_s() -> float:
    """Seconds of processor time that all cores have been busy."""
    ticks = machine_ticks()
    return ticks[0] / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def middle_figures(runs: Sequence[Run]) -> dict[str, float]:
    """Return the median of each figure over runs of the same."""
    return {name: median(run.figures[name] for run in runs) for name in runs[0].figures}
