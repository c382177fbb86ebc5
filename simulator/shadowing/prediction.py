"""Plays a recording in virtual time with the present routing and with Hearth's, on engines that fit the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.profile import Profile
from simulator.records import Record, Replay
from simulator.replay import Setting, play
from simulator.report import RoutingReport, report_on
from simulator.shadowing.calibration import calibrate, error_of, first_guess, load_of
from simulator.shadowing.readings import Seen, in_buckets, median_of
from simulator.shadowing.recording import Recording
from simulator.traces import Trace

OURS = "warm"

PRESENT = ("round-robin", "least-loaded", "session-affinity", "cache-aware", "llm-d-3-2-2", "dynamo")
"""Routings that a present gateway may have, by their names in the simulator."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One routing on the recorded traffic."""

    routing: str
    requests: int
    hit_ratio: float
    ttft_p50_s: float
    ttft_p95_s: float
    prefill_engine_s: float
    """Seconds of prefill of all engines together."""
    engines: int
    ttft_p50_in_buckets_s: float | None = None
    """The median as the metrics' histogram would show it; None without metrics."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """All that is predicted of one recording, and the engines and trace that it was predicted with."""

    trace: Trace
    profile: Profile
    present: Prediction
    ours: Prediction
    fewest: Prediction
    """Hearth's with the fewest engines whose TTFT (p95) is at most the present one's."""
    misfit: float
    """What is left between the calibrated engines and the metrics; 0 is none."""


def conclude(
    recording: Recording, seen: Seen, *, engines: int, present: str, base: Profile, is_measured: bool
) -> Conclusion:
    """Calibrate engines on the present routing, then play both.

    `base`: sizes and speeds to begin from; with `is_measured` its speeds keep their proportions.
    """
    trace = recording.trace(seen, seen.block_size or base.block_size)
    profile = first_guess(seen, base, is_measured=is_measured)
    # Blocks as long as the trace's: finer ones cost time and change nothing.
    profile = replace(profile, block_size=trace.block_tokens or profile.block_size)
    load = load_of(trace, _played(trace, present, engines, profile).records)
    profile = calibrate(profile, load, seen, is_measured=is_measured)
    if present != "round-robin":
        # Where requests go depends on how fast engines are.
        load = load_of(trace, _played(trace, present, engines, profile).records)
        profile = calibrate(profile, load, seen, is_measured=is_measured)
    found = predict(trace, present, engines, profile, seen)
    ours = predict(trace, OURS, engines, profile, seen)
    misfit = error_of(profile, load, seen) if seen.ttft else 0.0
    return Conclusion(trace, profile, found, ours, engines_needed(trace, found, ours, profile), misfit)


def predict(trace: Trace, routing: str, engines: int, profile: Profile, seen: Seen | None = None) -> Prediction:
    """Play a trace with a routing on so many engines."""
    replay = _played(trace, routing, engines, profile)
    report: RoutingReport = report_on(replay, profile)
    buckets = in_buckets(_first_tokens(replay.records), seen.ttft) if seen else ()
    return Prediction(
        routing,
        report.requests,
        report.hit_ratio,
        report.ttft_s.p50,
        report.ttft_s.p95,
        sum(report.work_s.values()),
        engines,
        median_of(buckets),
    )


def _played(trace: Trace, routing: str, engines: int, profile: Profile) -> Replay:
    return play(trace, Setting(routing, engines, profile))


def _first_tokens(records: Sequence[Record]) -> list[float]:
    return [one.ttft_s for one in records if one.is_answered and one.ttft_s is not None]


def engines_needed(trace: Trace, present: Prediction, ours: Prediction, profile: Profile) -> Prediction:
    """Return Hearth's prediction with the fewest engines whose TTFT (p95) is at most the present one's."""
    best = ours
    while best.engines > 1:
        fewer = predict(trace, OURS, best.engines - 1, profile)
        if fewer.ttft_p95_s > present.ttft_p95_s:
            break
        best = fewer
    return best


def describe(found: Conclusion, seen: Seen) -> str:
    """Return the table, with the error of the present routing's prediction against what pods report."""
    trace, present, ours, fewest = found.trace, found.present, found.ours, found.fewest

    def hours(prediction: Prediction) -> str:
        return f"{prediction.engines * trace.length_s / 3600:.2f}"

    engines = f"Engines for the present TTFT p95 with Hearth: {fewest.engines} of {present.engines}"
    engines += f" ({hours(fewest)} of {hours(present)} engine-hours)."
    bucketed = present.ttft_p50_in_buckets_s
    lines = [
        f"{len(trace.arrivals)} requests in {trace.length_s:.0f} s, {present.engines} engines",
        f"{'':24}{'present, seen':>16}{'present, predicted':>20}{'error':>9}{'Hearth, predicted':>20}",
        _line("cached prompt tokens", seen.hit_ratio, present.hit_ratio, ours.hit_ratio, "{:.1%}"),
        _line("TTFT p50, s", seen.ttft_p50_s, present.ttft_p50_s, ours.ttft_p50_s, "{:.3f}", bucketed),
        _line("TTFT p95, s", None, present.ttft_p95_s, ours.ttft_p95_s, "{:.3f}"),
        _line("prefill, engine-seconds", None, present.prefill_engine_s, ours.prefill_engine_s, "{:.1f}"),
        "",
        engines,
        "Nothing is rejected in the prediction: that takes a policy.",
    ]
    return "\n".join(lines) + "\n"


def _line(
    name: str, seen: float | None, present: float, ours: float, form: str, comparable: float | None = None
) -> str:
    """A row; `comparable` is the present figure in the form of the seen one, where that has another."""
    error = f"{(comparable or present) / seen - 1:+.0%}" if seen else "-"
    shown = form.format(seen) if seen is not None else "-"
    return f"{name:24}{shown:>16}{form.format(present):>20}{error:>9}{form.format(ours):>20}"
