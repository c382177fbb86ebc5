"""`hearth profile`: measures a pod over HTTP, fits an engine profile to it and writes it as YAML.

Only reads the command line and says what was found; measuring stands in `probes`, fitting in `fitting`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from simulator.engine_profile import MEASURED, EngineProfile, dump_engine_profile, load_engine_profile
from simulator.profile import Profile
from simulator.profiling.fitting import Fit, fit
from simulator.profiling.histograms import engine_times, link_of, sized
from simulator.profiling.observations import Seen
from simulator.profiling.pod_client import PodError, connected, today
from simulator.profiling.probes import LIMIT_S, Probe
from simulator.profiling.route_fit import fit_routes, served_of
from simulator.trace_formats import read_route_rows

ROUTE_NOTE = "Speeds fitted to a route log; sizes are those of the profile it began from."

ROUTE_NOTE_WITH_METRICS = (
    "Speeds fitted to a route log and the engines' histograms of the same time; block size and KV capacity are the "
    "engines', other sizes those of the profile it began from."
)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 well, 1 the pod could not be measured, 2 the command line is wrong."""
    options = make_parser().parse_args(argv)
    try:
        profile = _from_routes(options) if options.route_log else _from_pod(options)
        text = dump_engine_profile(profile)
        if options.out:
            options.out.write_text(text, encoding="utf-8")
    except (PodError, ValueError, OSError) as fault:
        print(f"hearth: {fault}", file=sys.stderr)
        return 1
    except ExceptionGroup as faults:
        print(f"hearth: {faults.exceptions[0]}", file=sys.stderr)
        return 1
    print(text if not options.out else summary_of(profile, options.out))
    return 0


def _from_pod(options: argparse.Namespace) -> EngineProfile:
    seen = Seen.from_json(options.seen.read_bytes()) if options.seen else asyncio.run(_measure(options))
    fitted = fit(seen)
    if options.keep_seen:
        options.keep_seen.write_bytes(seen.to_json())
    return profile_of(seen, fitted, options.hardware or this_machine())


def _from_routes(options: argparse.Namespace) -> EngineProfile:
    base = load_engine_profile(options.base).engine if options.base else Profile()
    if options.block_tokens:
        base = replace(base, block_size=options.block_tokens)
    after, before = _texts(options.metrics), _texts(options.metrics_before)
    if before and len(before) != len(after):
        raise ValueError("--metrics-before wants as many files as --metrics: one of each engine")
    for text in after[:1]:
        base = sized(base, text)
    rows = read_route_rows(options.route_log)
    fitted = fit_routes(base, served_of(rows), engine_times(after, before))
    return EngineProfile(
        engine=fitted.profile,
        source=MEASURED,
        hardware=options.hardware or "unknown",
        model=Counter(row.model for row in rows).most_common(1)[0][0],
        date=today(),
        spread=fitted.spread,
        notes=(ROUTE_NOTE if not after else ROUTE_NOTE_WITH_METRICS,),
        link=link_of(after, before),
    )


def _texts(paths: Sequence[Path]) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in paths]


async def _measure(options: argparse.Namespace) -> Seen:
    def report(line: str) -> None:
        print(f"hearth profile: {line}", file=sys.stderr, flush=True)

    async with connected(options.url, options.model) as pod:
        return await Probe(pod, report, limit_s=options.limit_s).measure(options.max_num_batched_tokens)


def profile_of(seen: Seen, fitted: Fit, hardware: str) -> EngineProfile:
    """Return what the file will hold."""
    return EngineProfile(
        engine=fitted.profile,
        source=MEASURED,
        hardware=hardware,
        model=seen.facts.get("model", ""),
        date=today(),
        versions={name: value for name, value in seen.facts.items() if name != "model"},
        spread=fitted.spread,
        link=seen.link,
    )


def summary_of(profile: EngineProfile, path: Path) -> str:
    """Return a line on what was found."""
    engine = profile.engine
    spread = ", ".join(f"{kind} {part:.0%}" for kind, part in profile.spread.items())
    return (
        f"{path}: {profile.model} on {profile.hardware}: {engine.prefill_tokens_per_s:,.0f} tokens/s prefill, a step "
        f"of {engine.step_s([], 1, 0) * 1000:.1f} ms, {engine.max_num_seqs} sequences and "
        f"{engine.max_num_batched_tokens} tokens a step, {engine.kv_capacity_tokens:,} tokens of KV. "
        f"Median errors: {spread}."
    )


def this_machine() -> str:
    """Return this machine's processor and cores, for pods that stand here."""
    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration, IndexError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{name}, {os.cpu_count()} cores"


def make_parser() -> argparse.ArgumentParser:
    """The flags of `hearth profile`."""
    parser = argparse.ArgumentParser(
        prog="hearth profile",
        description="Measure a vLLM pod that has no other load meanwhile, in at most five minutes, and write an engine "
        "profile for `hearth simulate --profile`.",
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", help="of the pod")
    what.add_argument("--seen", type=Path, metavar="FILE", help="fit earlier observations instead")
    what.add_argument("--route-log", type=Path, metavar="FILE", help="fit the speeds to a gateway's route log instead")
    parser.add_argument("--base", type=Path, metavar="FILE", help="with --route-log: the engine profile to begin from")
    for name, when in (("metrics", "end"), ("metrics-before", "beginning")):
        text = f"with --route-log: /metrics of each engine at the log's {when}"
        parser.add_argument(f"--{name}", type=Path, nargs="+", default=[], metavar="FILE", help=text)
    parser.add_argument("--block-tokens", type=int, metavar="N", help="with --route-log: of an engine's block")
    parser.add_argument("--model", metavar="NAME", help="which model (default the first it serves)")
    parser.add_argument("--hardware", metavar="TEXT", help="what it runs on (default this machine)")
    parser.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="the pod's own flag (default measured)")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, metavar="S", help="seconds at most (default %(default)g)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the profile, YAML (default to standard output)")
    parser.add_argument("--keep-seen", type=Path, metavar="FILE", help="write the observations too, JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
