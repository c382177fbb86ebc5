"""Plays the same traffic on real vLLM and on the simulator with a profile of it, and prints how far they are apart.

    python -m bench.truth [--quick] [--repeats N] [--seconds S] [--only NAME ...] [--profile FILE] [--seen FILE]
                          [--pods 1 | 2 | both] [--url URL --hardware TEXT] [--nice N] [--limit-s S] [--keep FILE]
                          [--runs FILE]

Starts its pods itself (make vllm-venv), each pinned to a core; profiles one of them before and after the workloads,
unless `--profile` names an engine profile: a machine that has changed meanwhile counts by half then. Recorded traces
are looked for in the folder that TRACES names. Exit status 1 where something falls short.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.target import Target
from bench.truth.engines import FLAGS, MAX_BATCHED_TOKENS, MODEL, PinnedPod, behind_gateway, favour_session, pinned_pods
from bench.truth.errors import Row, targets_of
from bench.truth.playing import (
    Run,
    play_real,
    play_simulated,
    play_simulated_fleet,
    sustained_s,
)
from bench.truth.report import table
from bench.truth.workloads import Workload, at_load, available
from simulator.engine_profile import EngineProfile, dump_engine_profile, load_engine_profile
from simulator.profile import Profile
from simulator.profiling.command import profile_of, this_machine
from simulator.profiling.fitting import fit
from simulator.profiling.observations import Seen, pooled
from simulator.profiling.pod_client import PodClient, connected
from simulator.profiling.probes import LIMIT_S, Probe
from simulator.traces import Trace
from tests.vllm.children import ChildFailedError

MIN_WORKLOADS = 12

MIN_REQUESTS = 12

SAMPLE = 48
"""Requests from which a workload's cost is guessed."""

SCALES = 1.6
"""Throughput of two pods by that of one, with prompts that share nothing, below which two pods say nothing."""

CONTROL = "long prompts"

FLEET = ("chat", "agent", "shared prefixes", "mixture")
"""Workloads that are played through the gateway too."""

METHOD = f"""\
One vLLM pod ({MODEL}, {" ".join(FLAGS[4:8])}
{" ".join(FLAGS[8:])}), all its processes on one core, the client on the other.
The simulated engine has the profile that `hearth profile` measured on this pod just before and just after; no workload
was used for the fit. Cells: the real figure (median of repeats; TTFT and TPOT in ms, output tokens a second, cached
tokens), the simulated one's error in %, and in brackets the engine's own median deviation from repeat to repeat.
Preemptions: real / simulated. Client and others: share of a core that the load generator, and everybody beside it and
the pod, used.\
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 where something falls short or could not be measured."""
    options = _options(arguments)
    try:
        with favoured(options.nice):
            text, targets = asyncio.run(_measure(options))
    except (ChildFailedError, OSError) as fault:
        print(f"bench-truth: {fault}", file=sys.stderr)
        return 1
    text = "\n\n".join([text, "\n".join(map(str, targets))])
    print(text)
    if options.keep:
        options.keep.write_text(text + "\n", encoding="utf-8")
    return 0 if targets and all(target.is_met for target in targets) else 1


@contextmanager
def favoured(niceness: int) -> Iterator[None]:
    """Give this process, and what it starts, a niceness; its session has the usual one again afterwards."""
    if niceness:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        favour_session(os.getpid(), niceness)
    try:
        yield
    finally:
        if niceness:
            favour_session(os.getpid(), 0)


async def _measure(options: argparse.Namespace) -> tuple[str, list[Target]]:
    cores = sorted(os.sched_getaffinity(0))
    client_core, pod_core = cores[0], cores[-1]
    os.sched_setaffinity(0, {client_core})
    blocks, rows, targets = [], list[Row](), list[Target]()
    try:
        async with AsyncExitStack() as stack:
            url, pids = options.url, list[int]()
            if not url:
                (pod,) = await stack.enter_async_context(pinned_pods([pod_core], options.nice))
                url, pids = pod.url, pod.processes()
            client = await stack.enter_async_context(connected(url))
            seen = None if options.profile else await _look(client, options)
            profile = _profile(seen, options)
            if options.pods != "2":
                played = await _one_pod(client, pids, profile.engine, options)
                if seen is not None:
                    seen = pooled(seen, await _look(client, options))
                    profile = _profile(seen, options)
                rows = await _rows_of(played, profile.engine)
                blocks.append(table("One pod", rows))
                targets += targets_of(rows, MIN_WORKLOADS)
                _store(rows, seen, options)
            print(dump_engine_profile(profile), file=sys.stderr, flush=True)
    finally:
        os.sched_setaffinity(0, set(cores))
    if options.pods != "1" and not options.url:
        block, ratio = await _two_pods(cores, profile.engine, options)
        blocks.append(block)
        targets.append(
            Target("two pods by one, throughput (below, their table is void)", SCALES, ratio, is_minimum=True)
        )
    text = "\n\n".join([_head(options, profile, rows), METHOD, *blocks])
    return text, targets


async def _look(client: PodClient, options: argparse.Namespace) -> Seen:
    """Observe the pod for half of the time that `hearth profile` takes."""
    probe = Probe(
        client, lambda line: print(f"bench-truth: {line}", file=sys.stderr, flush=True), limit_s=options.probe_s
    )
    return await probe.measure(None if options.url else MAX_BATCHED_TOKENS)


def _profile(seen: Seen | None, options: argparse.Namespace) -> EngineProfile:
    if seen is None:
        return load_engine_profile(options.profile)
    return profile_of(seen, fit(seen), options.hardware or f"one core of {this_machine()}")


def traffic(workload: Workload, profile: Profile, seconds: float, seed: int) -> Trace:
    """Return a workload's trace for about so many seconds of this engine."""
    sample = workload.build(SAMPLE, seed)
    each_s = sustained_s(sample, profile) / len(sample.arrivals)
    wanted = workload.requests or max(int(seconds * (workload.load or 1.0) / each_s), MIN_REQUESTS)
    trace = workload.build(min(wanted, 600), seed)
    return at_load(trace, workload.load, sustained_s(trace, profile))


Played = dict[str, tuple[Trace, list[Run]]]
"""What was played of each workload, and how it went each time."""


async def _one_pod(client: PodClient, pids: Sequence[int], profile: Profile, options: argparse.Namespace) -> Played:
    workloads = [one for one in available() if not options.only or one.name in options.only]
    # A virtual loop cannot run inside this one: it gets a thread of its own.
    traces = {
        one.name: await asyncio.to_thread(traffic, one, profile, options.seconds, options.seed) for one in workloads
    }
    played: Played = {name: (trace, []) for name, trace in traces.items()}
    began_s = time.monotonic()
    # Round by round, so that a disturbed minute does not fall on one workload.
    for number in range(options.repeats):
        used_s = time.monotonic() - began_s
        if number and used_s + used_s / number > options.limit_s:
            break
        for name, (trace, runs) in played.items():
            run = await play_real(trace, client, [client], pids, 1_000 * options.seed + number)
            runs.append(run)
            print(
                f"bench-truth: {name}: {len(trace.arrivals)} requests, others {run.others_share:.2f}", file=sys.stderr
            )
    return played


async def _rows_of(played: Played, profile: Profile) -> list[Row]:
    rows = []
    for name, (trace, runs) in played.items():
        simulated = await asyncio.to_thread(play_simulated, trace, profile)
        rows.append(Row(name, len(trace.arrivals), simulated.figures, runs))
    return rows


async def _two_pods(cores: Sequence[int], profile: Profile, options: argparse.Namespace) -> tuple[str, float]:
    """Two pods behind the gateway, and by how much two pods have more throughput than one at all."""
    if len(cores) < 2:
        return "Two pods: not measured, there is one core only.", 0.0
    async with AsyncExitStack() as stack:
        pods = await stack.enter_async_context(pinned_pods([cores[0], cores[-1]], options.nice))
        clients = [await stack.enter_async_context(connected(pod.url)) for pod in pods]
        ratio = await _control(clients, pods)
        gateway_url = await stack.enter_async_context(behind_gateway(pods, options.nice))
        through = await stack.enter_async_context(connected(gateway_url, MODEL))
        pids = [pid for pod in pods for pid in pod.processes()]
        rows = []
        for workload in available():
            if workload.name not in FLEET or (options.only and workload.name not in options.only):
                continue
            trace = (await asyncio.to_thread(traffic, workload, profile, 2 * options.seconds, options.seed)).faster(2.0)
            runs = [
                await play_real(trace, through, clients, pids, 1_000 * options.seed + number)
                for number in range(max(options.repeats // 2, 1))
            ]
            simulated = await asyncio.to_thread(play_simulated_fleet, trace, profile, 2)
            rows.append(Row(workload.name, len(trace.arrivals), simulated.figures, runs))
    verdict = "" if ratio >= SCALES else f" VOID: below {SCALES}, two pods disturb each other here."
    block = table("Two pods behind the gateway", rows)
    return f"{block}\ncontrol: two pods have {ratio:.2f} x one's throughput.{verdict}", ratio


async def _control(clients: Sequence[PodClient], pods: Sequence[PinnedPod]) -> float:
    """Throughput of two pods at once by that of the first alone, with prompts that share nothing."""
    build = next(one for one in available() if one.name == CONTROL).build
    traces = [at_load(build(12, seed), None, 1.0) for seed in (1, 2)]
    alone = await play_real(traces[0], clients[0], clients[:1], pods[0].processes(), 1)
    both = await asyncio.gather(
        *(
            play_real(trace, client, [client], pod.processes(), 2)
            for trace, client, pod in zip(traces, clients, pods, strict=True)
        )
    )
    return sum(run.figures["throughput"] for run in both) / alone.figures["throughput"]


def _store(rows: Sequence[Row], seen: Seen | None, options: argparse.Namespace) -> None:
    if options.runs:
        options.runs.write_bytes(msgspec.json.encode([asdict(row) for row in rows]))
    if options.seen and seen is not None:
        options.seen.write_bytes(seen.to_json())


def _head(options: argparse.Namespace, profile: EngineProfile, rows: Sequence[Row]) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    versions = ", ".join(f"{name} {version}" for name, version in profile.versions.items())
    spread = ", ".join(f"{kind} {part:.1%}" for kind, part in profile.spread.items())
    repeats = min((len(row.runs) for row in rows), default=0)
    priority = f", pods and client at niceness {options.nice}" if options.nice else ""
    return (
        f"bench-truth, {datetime.now(UTC):%Y-%m-%d}, {python}, {versions}, {profile.hardware}\n"
        f"{repeats} repeats of about {options.seconds:g} s{priority}; residuals of the fit: {spread}"
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.truth", description="How true the simulator is.")
    parser.add_argument("--quick", action="store_true", help="once each, 6 s, one pod")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument(
        "--seconds", type=float, default=20.0, metavar="S", help="of each workload (default %(default)g)"
    )
    parser.add_argument(
        "--limit-s", type=float, default=3600.0, metavar="S", help="begin no round that would end later"
    )
    parser.add_argument(
        "--probe-s", type=float, default=LIMIT_S / 2, metavar="S", help="of each look at the pod (default %(default)g)"
    )
    parser.add_argument("--nice", type=int, default=0, metavar="N", help="of pods and client; below 0 wants root")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the traffic")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these workloads")
    parser.add_argument("--url", help="of a pod that stands already, which nobody else uses; one pod only")
    parser.add_argument("--hardware", metavar="TEXT", help="with --url: what it runs on")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="instead of measuring one")
    parser.add_argument("--seen", type=Path, metavar="FILE", help="write the profiler's observations, JSON")
    parser.add_argument("--runs", type=Path, metavar="FILE", help="write all figures, JSON")
    parser.add_argument("--pods", choices=("1", "2", "both"), default="both")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    if options.quick:
        options.repeats, options.seconds, options.pods = 1, 6.0, "1"
    return options


if __name__ == "__main__":
    sys.exit(main())
