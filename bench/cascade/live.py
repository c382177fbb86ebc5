"""What a cascade costs: the relay's CPU for a chunk of a released stream, how much later a kept one begins, how soon a
model that was given up stops, and whether a client ever sees what was thrown away.

    python -m bench.cascade.live [--streams N] [--tokens N] [--rounds N] [--keep FILE]

A real gateway before a pod that is as cheap as it can be. CPU by the kernel's accounting, as ratios within a round. How
much later a stream begins is measured from the pod's write to the client's read, beside streams of a judge that takes
no time, in the same rounds: what the machine does to both is in both. Exit code 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.cascade.gateway_process import (
    AT_ONCE,
    BOUND_MS,
    GIVEN_UP,
    PLAIN,
    RELEASED,
    WINDOW,
    Gateway,
    running,
    settings,
)
from bench.cascade.invariants import fuzzed, rejected_behind_envoy
from bench.cascade.logprob_pod import LogprobPod
from bench.cascade.restart import Gap, restart_gap
from bench.cascade.stream_clients import play, some
from bench.target import Target

PACE_S = 0.02
SLOW_PACE_S = 0.03
"""So slow that time closes the window, not its tokens."""
ABORT_PACE_S = 0.1
"""So slow that tokens made after the abort can be counted."""
MAX_RATIO = 2.5
"""Of a stream that is decoded and written again event by event, to one whose chunks pass unchanged."""
MAX_TOKENS = 1.0
FUZZED = 10_000
REQUESTS = 300

ELSEWHERE = (
    "elsewhere: real vLLM, two models, streaming and not, by margin, broken JSON and policy: make test-vllm "
    "(tests/vllm/test_cascade.py); the first model chosen behind Envoy: make test-envoy (tests/envoy/test_cascades.py)"
)

Found = tuple[list[str], list[Target]]


async def measure(options: argparse.Namespace) -> Found:
    pod = LogprobPod()
    server = await asyncio.get_running_loop().create_server(pod.protocol, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    lines, targets = list[str](), list[Target]()
    with tempfile.TemporaryDirectory() as folder:
        async with running(settings(Path(folder), [url])) as gateway:
            for stage in (_chunks, _begins, _stops):
                more, wanted = await stage(gateway, pod, options)
                lines += more
                targets += wanted
    server.close()
    lines += _gap_lines(await restart_gap())
    return lines, targets


async def _chunks(gateway: Gateway, _pod: LogprobPod, options: argparse.Namespace) -> Found:
    """CPU for a chunk: plain, with requested log-probabilities, released with them removed."""
    cases = {"plain": (PLAIN, False), "asked": (PLAIN, True), "released": (RELEASED, False)}
    us: dict[str, list[float]] = {case: [] for case in cases}
    leaked = 0
    for _round in range(options.rounds):
        for case, (model, wants) in cases.items():
            requests = some(options.streams, model, options.tokens, PACE_S, wants_logprobs=wants)
            results, cpu_s = await play(gateway, requests)
            us[case].append(cpu_s / max(1, sum(each.events for each in results)) * 1e6)
            leaked += 0 if wants else sum(each.sure for each in results)
    ratios = {case: median(_ratios(us[case], us["plain"])) for case in cases}
    _, cpu_s = await play(gateway, some(REQUESTS, PLAIN, 2, PACE_S))
    second_us = cpu_s / REQUESTS * 1e6
    plain = median(us["plain"])
    lines = [
        _row("chunk of a plain stream", plain),
        _row("with log-probabilities that were asked for", median(us["asked"]), ratios["asked"]),
        _row("released, log-probabilities taken out", median(us["released"]), ratios["released"]),
        _row("begun anew without them: a second request", second_us),
        _row(f"as much per chunk of {options.tokens}", plain + second_us / options.tokens,
             1 + second_us / options.tokens / plain),
    ]  # fmt: skip
    released = Target("CPU of a released stream's chunk, of a plain one's", MAX_RATIO, ratios["released"])
    return lines, [released, Target("events with log-probabilities that nobody asked for", 0, leaked)]


async def _begins(gateway: Gateway, pod: LogprobPod, options: argparse.Namespace) -> Found:
    """From the pod's first token to the client's: held until time is up, let through at once, and plain."""
    late: dict[str, list[float]] = {PLAIN: [], AT_ONCE: [], RELEASED: []}
    for _round in range(4 * options.rounds):
        each_s = (some(options.streams // 4, model, 24, SLOW_PACE_S) for model in late)
        requests = [one for three in zip(*each_s, strict=True) for one in three]
        for results in (await play(gateway, requests))[0]:
            late[results.request.model].append(results.first_s - pod.book[results.request.user].first_s)
    p50, p99 = ([_share(late[model], part) * 1000 for model in (RELEASED, AT_ONCE, PLAIN)] for part in (0.5, 0.99))
    summary = (
        f"{p50[0]:.1f} held, {p50[1]:.1f} at once, {p50[2]:.1f} plain; p99 {p99[0]:.1f}, {p99[1]:.1f}, {p99[2]:.1f}"
    )
    lines = [f"first token from pod to client, ms, {len(late[RELEASED])} streams each: p50 {summary}"]
    return lines, [Target("added TTFT of kept streams whose window time closes, p99, ms", BOUND_MS, p99[0] - p99[1])]


async def _stops(gateway: Gateway, pod: LogprobPod, options: argparse.Namespace) -> Found:
    """A model that is given up: what its engine made beyond the window, and when the next one's answer begins."""
    results, _ = await play(gateway, some(options.streams, GIVEN_UP, 24, ABORT_PACE_S))
    begins = [each.first_s - pod.book[each.request.user].first_s for each in results]
    beyond = [float(pod.book[each.request.user].tokens - 4) for each in results]
    lines = [f"first token of an escalated stream after the first rung's, p50: {_share(begins, 0.5) * 1000:.0f} ms"]
    title = "tokens made beyond the window by a rung that was given up, p99"
    return lines, [Target(title, MAX_TOKENS, _share(beyond, 0.99))]


def _gap_lines(gap: Gap) -> list[str]:
    waits = f"{gap.gap_s * 1000:.1f} ms, {gap.gap_s / gap.between_s:.1f} of the time between two tokens"
    summary = f"begun anew after the window: its reader waits {waits}; the other stream goes on at once"
    return [f"{summary} (simulated engine, {gap.tokens:,} tokens warm)"]


def _ratios(us: Sequence[float], plain: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(us, plain, strict=True)]


def _share(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _row(title: str, us: float, ratio: float | None = None) -> str:
    return f"{title:46}{us:8.1f} us" + ("" if ratio is None else f"  {ratio:5.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cascade.live", description="What do ladders cost at work?")
    parser.add_argument("--streams", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--fuzzed", type=int, default=FUZZED, help="streams cut up by chance, held, kept and thrown away"
    )
    parser.add_argument("--keep", type=Path, help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    lines, targets = asyncio.run(measure(options))
    targets += [
        Target(f"bytes of {options.fuzzed:,} fuzzed streams that were retracted or wrong", 0, fuzzed(options.fuzzed)),
        Target("judging ladders that are accepted behind Envoy without a way back", 0, rejected_behind_envoy()),
    ]
    load = f"{options.streams} streams of {options.tokens} tokens, {options.rounds} rounds"
    head = f"Ladders at work: {load}; window {WINDOW} tokens or {BOUND_MS:g} ms; Python {platform.python_version()}"
    summary = "\n".join([head, "", *lines, "", *map(str, targets), ELSEWHERE])
    print(summary)
    if options.keep is not None:
        options.keep.write_text(summary + "\n")
    return 0 if all(target.is_met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
