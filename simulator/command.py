"""`hearth simulate`: plays a trace onto simulated pods, once per routing, and says how the routings compare.

Reads the command line; replays are in `replay` (virtual time) and `live_replay` (over HTTP), the output in
`publish`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from routing.pairing.roles import RoleTerms
from simulator.children import ChildFailed
from simulator.display import Display, make_display
from simulator.engine_profile import EngineProfile, ProfileError, load_engine_profile
from simulator.intervals import explain_intervals, fast_and_slow
from simulator.link import Link
from simulator.live_replay import play_on_stages
from simulator.policies.registry import COMPARED as ALL_POLICIES
from simulator.policies.registry import POLICIES, known_policies
from simulator.profile import Profile
from simulator.publish import publish
from simulator.records import Replay
from simulator.replay import Setting, play
from simulator.report import RoutingReport, report_on
from simulator.split import Split
from simulator.trace_formats import TraceFault, load_trace
from simulator.traces import Trace
from simulator.workload import SHAPES, generate

GENERATED_REQUESTS = 2_000

GENERATED = "generated"

DEFAULT_PODS = 8

RECORDED = "as-recorded"

JITTER_S = 0.2
"""With several seeds: the order within a burst changes, the burst stays one."""

SYNC_DELAY_S = 0.005
"""Delay of updates through a nearby Redis, sent at once: 2 to 3 ms without CPU contention."""

COMPARED = "round-robin,least-loaded,warm"

INTERRUPTED = 130
"""What a shell says of a program that was interrupted."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for."""

    trace: str
    routings: tuple[str, ...]
    is_compared: bool
    """All there are, not only those named."""
    pods: int
    """0: as many as the trace was recorded on, where it tells."""
    speed: float
    limit: int | None
    seed: int
    seeds: int
    jitter_s: float
    replicas: int
    sync_delay_s: float | None
    profile: Profile
    engine_profile: EngineProfile | None
    """Where the pods' speeds were read from, if they were."""
    hardware: str | None
    """What the pods are to run on; None: what the engine profile was measured on."""
    split: Split | None
    """How prefill and decode are shared, where the pods hand KV over."""
    is_live: bool
    out: Path


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 well, 1 it could not be played, 2 the command line is wrong."""
    wanted = read_wanted(argv)
    try:
        trace = choose_trace(wanted.trace, wanted.limit, wanted.seed).faster(wanted.speed)
        wanted = fit(wanted, trace)
        with make_display() as display:
            replays = play_all(wanted, trace, display)
            again = play_again(wanted, trace, display)
            intervals = play_intervals(wanted, trace, display)
    except (TraceFault, ChildFailed, ValueError) as fault:
        print(f"hearth: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    publish(trace, wanted.profile, replays, wanted.out, sys.stdout, again)
    if wanted.engine_profile is not None:
        print("\n" + explain_intervals(wanted.engine_profile, wanted.hardware, intervals))
    return 0


def fit(wanted: Wanted, trace: Trace) -> Wanted:
    """Adapt the options to a recording's own changes: its number of pods, and its recorded incidents."""
    names = wanted.routings
    if wanted.is_compared and trace.engines:
        names = (RECORDED, *names)
    return replace(wanted, pods=wanted.pods or trace.engines or DEFAULT_PODS, routings=names)


def play_all(wanted: Wanted, trace: Trace, display: Display) -> list[Replay]:
    """One replay per routing, each on fresh pods."""
    if wanted.is_live:
        logs = wanted.out / "logs"
        return uvloop.run(play_on_stages(trace, wanted.routings, wanted.pods, wanted.profile, logs, display))
    return [play_one(wanted, trace, routing, wanted.seed, display) for routing in wanted.routings]


def play_again(wanted: Wanted, trace: Trace, display: Display) -> list[list[RoutingReport]]:
    """The other seeds: per routing, a report each."""
    seeds = range(wanted.seed + 1, wanted.seed + wanted.seeds)
    return [
        [report_on(play_one(wanted, trace, routing, seed, display), wanted.profile) for seed in seeds]
        for routing in wanted.routings
    ]


def play_intervals(wanted: Wanted, trace: Trace, display: Display) -> list[tuple[RoutingReport, RoutingReport]]:
    """Per routing, on engines as fast and as slow as the engine profile leaves open; nothing without one, or live."""
    if wanted.engine_profile is None or wanted.is_live:
        return []
    ends = [
        replace(wanted, profile=end)
        for end in fast_and_slow(wanted.profile, wanted.engine_profile.spread_on(wanted.hardware))
    ]
    reports = [
        [report_on(play_one(end, trace, routing, wanted.seed, display), end.profile) for end in ends]
        for routing in wanted.routings
    ]
    return [(fast, slow) for fast, slow in reports]


def play_one(wanted: Wanted, trace: Trace, routing: str, seed: int, display: Display) -> Replay:
    """One routing with one seed, in virtual time."""
    display.begin(routing, len(trace.arrivals))
    setting = Setting(
        routing,
        wanted.pods,
        wanted.profile,
        seed,
        replicas=wanted.replicas,
        sync_delay_s=wanted.sync_delay_s,
        split=wanted.split,
    )
    return play(trace.jittered(wanted.jitter_s, seed), setting, display)


def choose_trace(name: str, limit: int | None, seed: int) -> Trace:
    """A file, or `generated` with an optional shape behind a colon. Raises `TraceFault`."""
    prefix, _, shape = name.partition(":")
    if prefix != GENERATED:
        return load_trace(Path(name), seed=seed).first(limit)
    if (shape or "chat") not in SHAPES:
        raise TraceFault(f"no shape `{shape}`: {', '.join(SHAPES)}")
    return generate(SHAPES[shape or "chat"], limit or GENERATED_REQUESTS, seed=seed, name=name)


def read_wanted(argv: Sequence[str] | None) -> Wanted:
    """The command line. Ends the program where it is wrong."""
    parser = make_parser()
    options = parser.parse_args(argv)
    names = tuple(dict.fromkeys(name for name in options.routing.split(",") if name))
    names = ALL_POLICIES if options.compare else names
    if unknown := [name for name in names if name not in known_policies()]:
        parser.error(f"argument --routing: no routing `{unknown[0]}`: {', '.join(known_policies())}")
    if (
        min(
            1 if options.pods is None else options.pods,
            options.arrival_rate,
            options.limit or 1,
            options.seeds,
            options.replicas,
        )
        <= 0
        or (options.arrival_jitter or 0.0) < 0
        or not names
    ):
        parser.error(
            "--pods, --arrival-rate, --limit, --seeds and --replicas must be above 0, and --routing must name one"
        )
    if options.http and (options.seeds > 1 or options.replicas > 1 or set(names) & set(POLICIES)):
        parser.error("--http plays the gateway's own routings, once, through one gateway")
    try:
        engine_profile = load_engine_profile(options.profile) if options.profile else None
        profile = _profile(options, engine_profile)
        split = _split(options, (engine_profile.link if engine_profile else None) or Link())
    except ValueError as error:
        parser.error(str(error))
    return Wanted(
        options.trace,
        names,
        options.compare,
        options.pods or 0,
        options.arrival_rate,
        options.limit,
        options.seed,
        options.seeds,
        options.arrival_jitter if options.arrival_jitter is not None else (JITTER_S if options.seeds > 1 else 0.0),
        options.replicas,
        None if options.no_replica_sync else options.staleness,
        profile,
        engine_profile,
        options.hardware,
        split,
        options.http,
        options.out,
    )


def _profile(options: argparse.Namespace, read: EngineProfile | None) -> Profile:
    """The pods' speeds and sizes: the engine profile's, or the defaults, with what the flags change.

    Raises ValueError where they contradict each other.
    """
    if read is not None and (options.prefill_rate is not None or options.step_ms is not None):
        raise ProfileError("--prefill-rate and --step-ms stand in the engine profile: give one or the other")
    if read is None and options.hardware is not None:
        raise ProfileError("--hardware wants --profile")
    base = read.engine if read is not None else Profile()
    flags = {
        "prefill_tokens_per_s": options.prefill_rate,
        "step_base_s": None if options.step_ms is None else options.step_ms / 1000,
        "kv_capacity_tokens": options.kv_tokens,
        "block_size": options.block_tokens,
        "time_scale": options.clock_rate,
    }
    return replace(base, **{name: value for name, value in flags.items() if value is not None})


def _split(options: argparse.Namespace, link: Link) -> Split | None:
    """Return the roles; `link` is the engine profile's, or the default. Raises ValueError where flags contradict."""
    if options.prefill is None:
        if options.dynamic_roles or options.pd_always:
            raise ValueError("--dynamic-roles and --pd-always want --prefill")
        return None
    pods = options.pods or DEFAULT_PODS
    if options.http or (options.replicas > 1 and options.dynamic_roles):
        raise ValueError("--prefill plays in virtual time; with --dynamic-roles through one gateway")
    if not 0 <= options.prefill < pods or (options.dynamic_roles and not options.prefill):
        raise ValueError(f"--prefill must be from {1 if options.dynamic_roles else 0} to {pods - 1}")
    link = Link(
        options.kv_bytes if options.kv_bytes is not None else link.bytes_per_token,
        options.link_gb_s * 1e9 if options.link_gb_s is not None else link.bytes_per_s,
        options.link_ms / 1000 if options.link_ms is not None else link.fixed_s,
    )
    terms = RoleTerms(ttft_s=options.ttft_s, tpot_s=options.tpot_ms / 1000)
    return Split(
        options.prefill, options.dynamic_roles, options.pd_always or options.dynamic_roles, terms=terms, link=link
    )


def make_parser() -> argparse.ArgumentParser:
    """The flags of `hearth simulate`."""
    parser = argparse.ArgumentParser(
        prog="hearth simulate",
        description="Play a trace onto simulated pods, once per routing, and compare: in virtual time through the real "
        "router and pipeline, or with --http through the real gateway.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    shapes = ", ".join(f"{GENERATED}:{name}" for name in SHAPES)
    add("--trace", required=True, metavar="FILE", help=f"Mooncake, LMCache, Azure or our own format; or {shapes}")
    add("--pods", type=int, metavar="N", help="simulated pods (default as many as recorded, else 8)")
    add(
        "--routing",
        default=COMPARED,
        metavar="NAME[,NAME]",
        help="routings to compare (default %(default)s)",
    )
    add(
        "--arrival-rate",
        type=float,
        default=1.0,
        metavar="S",
        help="arrival rate relative to the trace (default %(default)s)",
    )
    add("--limit", type=int, metavar="N", help="play the first N requests only")
    add("--seed", type=int, default=0, metavar="N", help="random seed (default %(default)s)")
    add("--seeds", type=int, default=1, metavar="N", help="play with N seeds from --seed on and report medians")
    add(
        "--arrival-jitter",
        type=float,
        metavar="S",
        help=f"maximum random shift of an arrival, in seconds (default {JITTER_S:g} with --seeds, else 0)",
    )
    add("--replicas", type=int, default=1, metavar="K", help="gateways that share the pods (default %(default)s)")
    add(
        "--staleness",
        type=float,
        default=SYNC_DELAY_S,
        metavar="S",
        help="with --replicas: delay of replica sync, in seconds (default %(default)g)",
    )
    add("--no-replica-sync", action="store_true", help="with --replicas: no replica sync")
    add("--compare", action="store_true", help=f"all policies side by side: {', '.join(ALL_POLICIES)}")
    add("--http", action="store_true", help="over HTTP: the gateway and the pods are separate processes")
    add(
        "--clock-rate",
        type=float,
        default=1.0,
        metavar="X",
        help="with --http: speed of the clock relative to real time",
    )
    _add_split_flags(add)
    _add_engine_flags(add)
    add(
        "--out",
        type=Path,
        default=Path("out/simulate"),
        metavar="DIR",
        help="for report.json, plot.png and logs (default %(default)s)",
    )
    return parser


def _add_split_flags(add: Callable[..., object]) -> None:
    link, terms = Link(), RoleTerms()
    add("--prefill", type=int, metavar="K", help="pods that prefill while the others decode; 0: each pod does either")
    add("--dynamic-roles", action="store_true", help="with --prefill: roles follow the traffic")
    add("--pd-always", action="store_true", help="with --prefill: decode pods never prefill")
    add(
        "--ttft-s",
        type=float,
        default=terms.ttft_s,
        metavar="S",
        help="what --dynamic-roles holds to (default %(default)g)",
    )
    add("--tpot-ms", type=float, default=terms.tpot_s * 1000, metavar="MS", help="the same (default %(default)g)")
    or_profile = "the engine profile's, or"
    add("--kv-bytes", type=int, metavar="N", help=f"of KV a token ({or_profile} {link.bytes_per_token})")
    add("--link-gb-s", type=float, metavar="X", help=f"GB/s from pod to pod ({or_profile} {link.bytes_per_s / 1e9:g})")
    add("--link-ms", type=float, metavar="MS", help=f"a transfer of any size ({or_profile} {link.fixed_s * 1000:g})")


def _add_engine_flags(add: Callable[..., object]) -> None:
    ours = Profile()
    add("--profile", type=Path, metavar="FILE", help="engine profile of a pod, as `hearth profile` writes it")
    add(
        "--hardware",
        metavar="TEXT",
        help="with --profile: what the pods are to run on, where that is not what was measured",
    )
    add(
        "--prefill-rate",
        type=float,
        metavar="TOKENS_PER_S",
        help=f"of a pod (default {ours.prefill_tokens_per_s:g})",
    )
    add("--step-ms", type=float, metavar="MS", help=f"of an engine's step (default {ours.step_base_s * 1000:g})")
    add("--kv-tokens", type=int, metavar="N", help=f"KV cache of a pod (default {ours.kv_capacity_tokens})")
    add("--block-tokens", type=int, metavar="N", help=f"of an engine's block (default {ours.block_size})")


if __name__ == "__main__":
    sys.exit(main())
