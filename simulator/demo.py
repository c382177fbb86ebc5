"""`hearth demo`: the gateway in front of simulated pods, one workload, round robin against cache-aware routing.

Everything listens on the loopback address and ends with us; `--keep` leaves the cache-aware gateway up for manual
requests.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop

from simulator.children import ChildFailed
from simulator.command import INTERRUPTED
from simulator.display import Display, make_display
from simulator.live_replay import play_live
from simulator.profile import Profile
from simulator.publish import publish
from simulator.records import Replay
from simulator.stage import MODEL, Stage, staged
from simulator.trace_formats import TraceFault, load_trace
from simulator.traces import Trace
from simulator.workload import TEAMS, generate

PODS = 4

ROUTINGS = ("round-robin", "warm")

TIME_SCALE = 8.0
"""Engine seconds in a real one. The replay then takes about half of two cores: the pods are the bottleneck, not the
machine (`publish` says so where they are not)."""

REQUESTS = 800
"""Of the generated workload: five and a half minutes of it, forty seconds in real time."""

MAX_REPLAY_S = 330.0
"""A trace is cut to what a demo has time for."""

FULL = 0.75
"""Of what all pods can compute: a real trace that would take more with nothing cached is slowed down to it, so that
round robin is slow but not drowned."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of the demo."""

    trace: Path | None
    keeps: bool
    time_scale: float
    out: Path


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 well, 1 it could not be played, or not every request was answered."""
    wanted = read_wanted(argv)
    try:
        trace = choose_trace(wanted.trace)
        print(f"{PODS} simulated pods, the gateway in front, all on 127.0.0.1: {trace!r}\n")
        return uvloop.run(show(trace, wanted, make_display()))
    except (TraceFault, ChildFailed) as fault:
        print(f"hearth: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


async def show(trace: Trace, wanted: Wanted, display: Display) -> int:
    """Play the trace once with each routing, on fresh pods, and compare."""
    profile, replays = Profile(time_scale=wanted.time_scale), list[Replay]()
    for routing in ROUTINGS:
        async with staged(routing, PODS, profile, wanted.out / "logs") as stage:
            with display:
                display.begin(routing, len(trace.arrivals))
                replays.append(await play_live(trace, routing, stage, wanted.time_scale, display))
            if routing == ROUTINGS[-1]:
                report = publish(trace, profile, replays, wanted.out, sys.stdout)
                if wanted.keeps:
                    await keep(stage)
                else:
                    print(
                        "\nNext: hearth demo --keep leaves all up for your own requests; hearth init names your pods."
                    )
    return 1 if any(one.failed for one in report.routings) else 0


async def keep(stage: Stage) -> None:
    """Say how to ask the gateway by hand, and wait until interrupted."""
    print(f"\nStill up, until Ctrl-C. Ask the gateway:\n\n{curl_line(stage)}\n")
    print(f"Why a request went where it went: curl -s '{stage.admin_url}/receipts?limit=1'")
    print(f"What is known of the pods:        curl -s {stage.admin_url}/fleet")
    sys.stdout.flush()
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


def curl_line(stage: Stage) -> str:
    """A first request."""
    body = f'{{"model": "{MODEL}", "stream": true, "messages": [{{"role": "user", "content": "Where is it warm?"}}]}}'
    return f"  curl -N {stage.url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


def choose_trace(path: Path | None) -> Trace:
    """The generated workload, or as much of a real trace as the pods can bear in our time. Raises `TraceFault`."""
    if path is None:
        return generate(TEAMS, REQUESTS, name="a dozen assistants (generated)")
    trace = load_trace(path)
    speed = min(FULL / cold_load(trace, Profile()), 1.0)
    if speed < 1.0:
        print(
            f"{trace.name} is played at {speed:.2f} times its rate: {PODS} pods could not bear more with nothing warm."
        )
    slowed = trace.faster(speed)
    return slowed.first(sum(one.at_s <= MAX_REPLAY_S for one in slowed.arrivals))


def cold_load(trace: Trace, profile: Profile) -> float:
    """Return the share of all pods' time that prefill would take if no prompt were cached."""
    work_s = sum(profile.prefill_s(0, one.prompt_tokens) for one in trace.arrivals)
    return work_s / PODS / max(trace.length_s, 1.0)


def read_wanted(argv: Sequence[str] | None) -> Wanted:
    """The command line."""
    options = make_parser().parse_args(argv)
    return Wanted(options.trace, options.keep, options.time_scale, options.out)


def make_parser() -> argparse.ArgumentParser:
    """The flags of `hearth demo`."""
    parser = argparse.ArgumentParser(
        prog="hearth demo",
        description="Play one workload with round robin and with prefix routing on four simulated pods, and compare.",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="play a real trace instead of a generated workload")
    parser.add_argument("--keep", action="store_true", help="leave gateway and pods up afterwards, until Ctrl-C")
    parser.add_argument(
        "--time-scale",
        type=float,
        default=TIME_SCALE,
        metavar="X",
        help="engine seconds in a real second (default %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/demo"),
        metavar="DIR",
        help="folder of the report and logs (default %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
