"""Records traffic with `hearth shadow` beside Envoy, switches to Hearth, and compares what happens with the prediction.

    python -m bench.shadow [--only WORD] [--real [--seconds S] [--nice N]] [--keep FILE]

Each phase has fresh pods (real ones: emptied caches) and the same requests at the same times. The shadow has the
requests' copies and the pods' metrics, and nothing else. `--real`: two vLLM pods on the CPU (make vllm-venv) instead
of recorded traces on simulated pods; traces are looked for in the folder that TRACES names. Exit status 1 where a
prediction is further off than wanted.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench.shadow.present import envoy_binary, mirrored
from bench.shadow.talks import USERS, Served, converse
from bench.shadow.traffic import SCALE, TRAFFICS, Traffic
from bench.target import Target
from bench.truth.engines import MODEL as REAL_MODEL
from bench.truth.engines import behind_gateway, favour_session, pinned_pods
from simulator.children import ChildFailed
from simulator.live_replay import play_live
from simulator.player import Player, Venue
from simulator.records import Record
from simulator.spread import at_share
from simulator.stage import MODEL, make_folder, staged, start_pods
from simulator.trace_formats import TraceFault

WANTED = 0.15

TURNS = 8

CORES = (0, 1)

METHOD = f"""\
Present: Envoy, round robin, a copy of each request to `hearth shadow`, which reads the pods' metrics before and after.
Then: `hearth serve` before pods with cold caches, the same requests at the same times. Recorded traces with prompts,
answers, cache and prefill speed divided by {SCALE}; simulated pods are processes whose speeds the shadow does not know.
TTFT of what happened: the client's, in s. Errors: predicted by happened, less 1.\
"""


@dataclass(frozen=True, slots=True)
class Actual:
    """What clients saw of one phase."""

    requests: int
    failed: int
    hit_ratio: float
    ttft_p50_s: float
    latest_s: float = 0.0
    """How long after they were due 99 of 100 requests were sent at most."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One traffic: both phases, and the shadow's report."""

    name: str
    present: Actual
    after: Actual
    report: dict[str, Any]

    def rows(self) -> list[str]:
        """Return the lines of the table."""
        seen, present, ours = self.report["seen"], self.report["present"], self.report["hearth"]
        comparable = present.get("ttft_p50_in_buckets_s") or present["ttft_p50_s"]
        head = (
            f"{self.name}: {self.after.requests} requests, {present['engines']} pods; failed "
            f"{self.present.failed} and {self.after.failed}; 99 of 100 at most {self.present.latest_s * 1000:.0f} and "
            f"{self.after.latest_s * 1000:.0f} ms late; misfit {self.report['misfit']:.3f}"
        )
        return [
            head,
            _row("cached, present (metrics)", present["hit_ratio"], seen["hit_ratio"]),
            _row("TTFT p50, present (metrics)", comparable, seen["ttft_p50_s"]),
            _row("TTFT p50, present", present["ttft_p50_s"], self.present.ttft_p50_s),
            _row("cached, Hearth", ours["hit_ratio"], self.after.hit_ratio),
            _row("TTFT p50, Hearth", ours["ttft_p50_s"], self.after.ttft_p50_s),
        ]

    def targets(self) -> list[Target]:
        """Return what is wanted."""
        ours, failed = self.report["hearth"], self.present.failed + self.after.failed
        hits = _error(ours["hit_ratio"], self.after.hit_ratio)
        ttft = _error(ours["ttft_p50_s"], self.after.ttft_p50_s)
        return [
            Target(f"{self.name}, cached after the switch: error", WANTED, hits),
            Target(f"{self.name}, TTFT p50 after the switch: error", WANTED, ttft),
            Target(f"{self.name}, failed requests", 0, float(failed)),
        ]


def _error(predicted: float, happened: float) -> float:
    return abs(predicted / happened - 1.0) if happened else float(predicted != 0.0)


def _row(name: str, predicted: float, happened: float | None) -> str:
    error = f"{predicted / happened - 1:+8.1%}" if happened else "       -"
    return f"  {name:30} predicted {predicted:8.3f}   happened {happened or 0.0:8.3f}   error {error}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    options = _options(arguments)
    try:
        outcomes = uvloop.run(_all(options))
    except (ChildFailed, TraceFault) as fault:
        print(f"bench-shadow: {fault}", file=sys.stderr)
        return 1
    found = [target for outcome in outcomes for target in outcome.targets()]
    machine = f"{os.cpu_count()} shared cores, {platform.python_implementation()} {platform.python_version()}"
    head = f"bench-shadow, {datetime.now(UTC):%Y-%m-%d}, {machine}"
    rows = "\n\n".join("\n".join(outcome.rows()) for outcome in outcomes)
    page = "\n\n".join([head, METHOD, rows, "\n".join(map(str, found))])
    print(page)
    if options.keep:
        options.keep.write_text(f"{page}\n", encoding="utf-8")
    return 0 if found and all(target.is_met for target in found) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.shadow", description="How near hearth shadow is.")
    parser.add_argument("--only", default="", metavar="WORD", help="traffics whose name has this word")
    parser.add_argument("--real", action="store_true", help="two real vLLM pods instead of simulated ones")
    parser.add_argument("--seconds", type=float, default=150.0, help="of a phase on real pods")
    parser.add_argument("--nice", type=int, default=0, metavar="N", help="of real pods and all that ask them")
    parser.add_argument("--out", type=Path, default=Path("out/bench-shadow"), help="logs and reports")
    parser.add_argument("--keep", type=Path, help="write what is printed to this file too")
    return parser.parse_args(arguments)


async def _all(options: argparse.Namespace) -> list[Outcome]:
    binary = envoy_binary()
    if options.real:
        return [await _real(binary, options.seconds, options.nice, options.out / "real")]
    outcomes = []
    for traffic in TRAFFICS:
        if options.only.lower() in traffic.name.lower():
            outcomes.append(await _simulated(binary, traffic, options.out / traffic.name.partition(" ")[0].lower()))
            print("\n".join(outcomes[-1].rows()), file=sys.stderr, flush=True)
    return outcomes


# --- Simulated pods, recorded traffic ---------------------------------------------------------------------------------


async def _simulated(binary: Path, traffic: Traffic, folder: Path) -> Outcome:
    trace = traffic.trace()
    make_folder(folder)
    async with AsyncExitStack() as stack:
        logs = [folder / f"pod-{number}.log" for number in range(traffic.pods)]
        urls = [url for _, url in await start_pods(stack, logs, traffic.engine)]
        shadow = await stack.enter_async_context(mirrored(binary, urls, folder))
        venue = Venue(shadow.url, MODEL, 1.0, {})
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        player = Player(trace, venue, client, _ignore)
        present = _actual(await player.play(), at_share(sorted(player.late_s), 0.99))
        report = await shadow.conclude()
    async with staged("warm", traffic.pods, traffic.engine, folder) as stage:
        replay = await play_live(trace, "warm", stage, 1.0, _ignore)
        after = _actual(replay.records, replay.late_s.p99 if replay.late_s else 0.0)
    return Outcome(traffic.name, present, after, report)


def _actual(records: Sequence[Record], latest_s: float) -> Actual:
    answered = [one for one in records if one.is_answered]
    tokens = sum(one.prompt_tokens for one in answered)
    return Actual(
        len(records),
        len(records) - len(answered),
        sum(one.cached_tokens or 0 for one in answered) / max(tokens, 1),
        at_share(sorted(one.ttft_s for one in answered if one.ttft_s is not None), 0.5),
        latest_s,
    )


def _ignore(_: Record) -> None:
    """Progress is not shown."""


# --- Real pods, conversations -----------------------------------------------------------------------------------------


async def _real(binary: Path, seconds: float, niceness: int, folder: Path) -> Outcome:
    """Each pod has a core of its own, as pods have."""
    if niceness:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        favour_session(os.getpid(), niceness)
    async with pinned_pods(CORES, niceness) as pods:
        urls = [pod.url for pod in pods]
        await _warmed(urls)
        async with mirrored(binary, urls, folder) as shadow:
            present = _talked(await converse(shadow.url, REAL_MODEL, seconds, TURNS))
            report = await shadow.conclude()
        await _forget(urls)
        async with behind_gateway(pods, niceness) as url:
            after = _talked(await converse(url, REAL_MODEL, seconds, TURNS))
    return Outcome("Two vLLM pods", present, after, report)


async def _warmed(urls: Sequence[str]) -> None:
    """The first requests of an engine are slow."""
    for url in urls:
        await converse(url, REAL_MODEL, 5.0, 1)
    await _forget(urls)


async def _forget(urls: Sequence[str]) -> None:
    async with aiohttp.ClientSession() as client:
        for url in urls:
            async with client.post(f"{url}/reset_prefix_cache") as answer:
                answer.raise_for_status()


def _talked(served: Sequence[Served]) -> Actual:
    tokens = sum(one.prompt_tokens for one in served)
    hits = sum(one.cached_tokens for one in served) / max(tokens, 1)
    return Actual(USERS * TURNS, USERS * TURNS - len(served), hits, at_share(sorted(one.ttft_s for one in served), 0.5))


if __name__ == "__main__":
    sys.exit(main())
