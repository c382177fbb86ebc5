"""What a person gets of a comparison: a table with its method below, a report and a picture in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TextIO

from simulator.plot import draw
from simulator.policies.bound import clairvoyant_ratio
from simulator.profile import Profile
from simulator.records import Replay
from simulator.report import Report, RoutingReport, middle_of, report_on
from simulator.table import explain_failures, tabulate
from simulator.traces import Trace

WIDTH = 120

LEGEND = """\
Warm: share of prompt tokens found in the pods' caches. Wait: TTFT beyond what the request's own cold tokens need on an
idle pod. Imbalance: prefill work of the busiest pod by the mean. Warm error: predicted against real."""

TOO_BUSY = 0.9
"""A machine busier than this may have made requests wait that no pod would have."""

TOO_LATE_S = 0.25
"""Requests later than this (p99) were not the trace any more."""


def publish(
    trace: Trace,
    profile: Profile,
    replays: Sequence[Replay],
    out: Path,
    stream: TextIO,
    again: Sequence[Sequence[RoutingReport]] = (),
) -> Report:
    """Write the table to the stream and report.json and plot.png into the folder.

    `again`: for each replay, the reports of the same with other seeds; medians are then told.
    """
    setup = describe(trace, profile, replays)
    first = [report_on(one, profile) for one in replays]
    others = again or [()] * len(first)
    medians = tuple(middle_of([one, *more]) for one, more in zip(first, others, strict=True))
    bound = clairvoyant_ratio(trace, profile.kv_capacity_tokens * len(replays[0].pods)) if trace.block_tokens else None
    report = Report(trace.name, setup, medians, 1 + len(others[0]), bound)
    out.mkdir(parents=True, exist_ok=True)
    report.write(out / "report.json")
    picture = _draw_if_possible(report, replays, out / "plot.png")
    sections = [tabulate(report), explain_failures(report), explain_method(trace, profile, report), *warnings(report)]
    sections.append(f"{out / 'report.json'}\n{picture}")
    stream.write("\n" + "\n\n".join(section for section in sections if section) + "\n")
    stream.flush()
    return report


def _draw_if_possible(report: Report, replays: Sequence[Replay], path: Path) -> str:
    """Draw the picture; return where it is, or why it was not drawn."""
    try:
        draw(report, replays, path)
    except ModuleNotFoundError as missing:
        return f"no picture: {missing.name} is not installed (it comes with hearth-gateway[simulate])"
    return str(path)


def describe(trace: Trace, profile: Profile, replays: Sequence[Replay]) -> dict[str, str | int | float]:
    """What was played onto what, for the report."""
    return {
        "played": "live" if replays[0].is_live else "virtual",
        "requests": len(trace.arrivals),
        "trace_length_s": round(trace.length_s, 3),
        "pods": len(replays[0].pods),
        "prefill_tokens_per_s": profile.prefill_tokens_per_s,
        "prefill_quadratic_tokens": profile.prefill_quadratic_tokens,
        "step_base_s": profile.step_base_s,
        "kv_capacity_tokens": profile.kv_capacity_tokens,
        "block_size": profile.block_size,
        "max_num_batched_tokens": profile.max_num_batched_tokens,
        "time_scale": profile.time_scale if replays[0].is_live else 0.0,
    }


def explain_method(trace: Trace, profile: Profile, report: Report) -> str:
    """How the figures came about, in a few sentences."""
    one = report.routings[0]
    load = (
        f"{one.requests:,} requests in {trace.length_s:,.0f} s, the same for every routing, each routing on "
        f"{len(one.work_s)} fresh pods with cold caches: {profile.prefill_tokens_per_s:,.0f} tokens/s prefill, "
        f"{profile.step_base_s * 1000:g} ms a step, {profile.kv_capacity_tokens:,} tokens of KV cache."
    )
    played = _virtual_text(report) if one.late_s is None else _live_text(profile, report)
    return fill(f"{load} {played} {_seeds_text(report)}{LEGEND}{_bound_text(report)}", WIDTH)


def _seeds_text(report: Report) -> str:
    return f"Medians of {report.seeds} runs, each with its own jitter and draws. " if report.seeds > 1 else ""


def _bound_text(report: Report) -> str:
    bound = report.clairvoyant_hit_ratio
    if bound is None:
        return ""
    return f" No routing could find more than {bound:.1%} warm: one cache of all pods' size that knew the future would."


def _virtual_text(report: Report) -> str:
    slowest = min((one.length_s / one.took_s for one in report.routings if one.took_s), default=0.0)
    return f"Played in virtual time through the gateway's router and spine, {slowest:,.0f} times as fast as real time."


def _live_text(profile: Profile, report: Report) -> str:
    busy = max((one.busy for one in report.routings if one.busy is not None), default=None)
    headroom = "" if busy is None else f"; this machine was {busy:.0%} busy"
    return (
        "Played over HTTP on 127.0.0.1 through the real gateway (hearth serve), "
        f"{profile.time_scale:g} times as fast as real time: times are engine seconds at the client{headroom}."
    )


def warnings(report: Report) -> list[str]:
    """What speaks against the figures."""
    return [section for one in report.routings for section in _warnings_of(one)]


def _warnings_of(one: RoutingReport) -> list[str]:
    found = []
    if one.busy is not None and one.busy > TOO_BUSY:
        found.append(f"{one.routing}: this machine was {one.busy:.0%} busy: play at a lower time scale to be sure.")
    if one.late_s is not None and one.late_s.p99 > TOO_LATE_S:
        found.append(f"{one.routing}: requests were sent up to {one.late_s.p99:.2f} s (p99) after they were due.")
    return found
