"""What is normal for a fleet: a week of times and levels by hour, and comparison with them. Pure.

Stored as JSON values of one version (`dump_baseline`, `load_baseline`); bounded by `MAX_KINDS` kinds of traffic and
`MAX_LEVELS` figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from diagnosis.distribution import Distribution
from diagnosis.facts import FleetFacts
from diagnosis.levels import levels_of
from diagnosis.request_times import Phase, RequestClass, RequestTimes, TrafficKey
from routing.facts import Role

VERSION = 1

HOURS = 168

MAX_KINDS = 16
"""Kinds of traffic in a baseline; all others are counted as one more."""

MAX_LEVELS = 512

MAX_LIMITS = 64

MAX_TEXT_CHARS = 1024
"""Of a name: a fact may have 512, and a role stands beside it."""

DECAY = 0.5
"""What a week's count is multiplied by when the same hour comes again, so that old weeks fade."""

FORGET_S = 14 * 86_400.0
"""What was not seen for so long is dropped: it leaves its place to kinds of traffic and pools that exist."""

MIN_LEVEL_WEIGHT = 5.0
"""Values of one hour below which the level of all hours is used instead."""


def hour_of_week(at_s: float) -> int:
    """Return the hour of the week of a Unix time, 0 to 167 in UTC; 0 is Thursday midnight."""
    return int(at_s // 3600) % HOURS


@dataclass(frozen=True, slots=True)
class Level:
    """A figure's sum and number of values, by hour of the week."""

    hours: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    seen_s: float = 0.0
    """Unix time of the last value."""

    def mean(self, hour: int) -> float | None:
        """Return the mean at this hour; of all hours where it has few values, None where there are few in all."""
        total, weight = self.hours.get(hour, (0.0, 0.0))
        if weight < MIN_LEVEL_WEIGHT:
            total = sum(each[0] for each in self.hours.values())
            weight = sum(each[1] for each in self.hours.values())
        return total / weight if weight >= MIN_LEVEL_WEIGHT else None


@dataclass(frozen=True, slots=True)
class HourTimes:
    """Requests of one kind in one hour of the week, and the seconds over which they were counted."""

    times: RequestTimes
    seconds: float
    seen_s: float = 0.0
    """Unix time at which requests were last counted."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Normal times and levels by hour of the week. `configuration` is a digest of what ran, for the reader."""

    saved_at_s: float = 0.0
    configuration: str = ""
    times: Mapping[tuple[TrafficKey, int], HourTimes] = field(default_factory=dict)
    levels: Mapping[tuple[str, str], Level] = field(default_factory=dict)
    """By pool with role, and name of the figure."""
    last_hour: int | None = None
    """Hour since the epoch that is being counted; the next: until when requests have been counted."""
    counted_until_s: float = 0.0

    def level(self, subject: str, name: str, at_s: float) -> float | None:
        """Return a figure's normal value at this time of the week; None where it is not known."""
        held = self.levels.get((subject, name))
        return None if held is None else held.mean(hour_of_week(at_s))

    def times_at(self, at_s: float) -> dict[TrafficKey, HourTimes]:
        """Return requests by kind at this hour; of this hour and its neighbours where it has few, else of all."""
        hour = hour_of_week(at_s)
        for hours in ({hour}, {(hour + step) % HOURS for step in (-1, 0, 1)}, set(range(HOURS))):
            found = self._summed(hours)
            if sum(each.times.requests for each in found.values()) >= 200 or len(hours) == HOURS:
                return found
        return {}

    def _summed(self, hours: set[int]) -> dict[TrafficKey, HourTimes]:
        summed: dict[TrafficKey, HourTimes] = {}
        for (key, hour), held in self.times.items():
            if hour in hours:
                before = summed.get(key)
                summed[key] = (
                    held if before is None else HourTimes(before.times.plus(held.times), before.seconds + held.seconds)
                )
        return summed


def learned(baseline: Baseline, facts: FleetFacts) -> Baseline:
    """Return the baseline with one more look at a healthy fleet counted in.

    Call it once for each window of `facts.times`, and only while no finding is raised. Windows that were counted are
    skipped.
    """
    epoch_hour = int(facts.at_s // 3600)
    hour = epoch_hour % HOURS
    times, levels = dict(baseline.times), dict(baseline.levels)
    if baseline.last_hour is not None and epoch_hour != baseline.last_hour:
        _forget(times, levels, facts.at_s - FORGET_S)
        _fade(times, levels, hour)
    # Of the future where the clock was set back: nothing would be counted until then.
    counted_until_s = min(baseline.counted_until_s, facts.at_s)
    for key, window in facts.times.items():
        if window.end_s > counted_until_s:
            _count(times, key, hour, window)
    for subject, values in levels_of(facts).items():
        if subject in levels or len(levels) < MAX_LEVELS:
            held = levels.get(subject, Level())
            total, weight = held.hours.get(hour, (0.0, 0.0))
            levels[subject] = Level({**held.hours, hour: (total + sum(values), weight + len(values))}, facts.at_s)
    until = max((window.end_s for window in facts.times.values()), default=counted_until_s)
    return replace(
        baseline,
        saved_at_s=facts.at_s,
        times=times,
        levels=levels,
        last_hour=epoch_hour,
        counted_until_s=max(until, counted_until_s),
    )


def _count(times: dict[tuple[TrafficKey, int], HourTimes], key: TrafficKey, hour: int, window: RequestTimes) -> None:
    kinds = {kind for kind, _ in times}
    if key not in kinds and len(kinds) >= MAX_KINDS:
        key = TrafficKey()
    held = times.get((key, hour))
    seconds = window.end_s - window.start_s
    times[key, hour] = (
        HourTimes(window, seconds, window.end_s)
        if held is None
        else HourTimes(held.times.plus(window), held.seconds + seconds, window.end_s)
    )


def _forget(
    times: dict[tuple[TrafficKey, int], HourTimes], levels: dict[tuple[str, str], Level], before_s: float
) -> None:
    for key in [key for key, held in times.items() if held.seen_s < before_s]:
        del times[key]
    for subject in [subject for subject, level in levels.items() if level.seen_s < before_s]:
        del levels[subject]


def _fade(times: dict[tuple[TrafficKey, int], HourTimes], levels: dict[tuple[str, str], Level], hour: int) -> None:
    for key, held in list(times.items()):
        if key[1] == hour:
            times[key] = HourTimes(_scaled(held.times, DECAY), held.seconds * DECAY, held.seen_s)
    for subject, level in list(levels.items()):
        if hour in level.hours:
            total, weight = level.hours[hour]
            levels[subject] = Level({**level.hours, hour: (total * DECAY, weight * DECAY)}, level.seen_s)


def _scaled(times: RequestTimes, share: float) -> RequestTimes:
    return replace(
        times,
        requests=times.requests * share,
        phases={phase: _scaled_distribution(held, share) for phase, held in times.phases.items()},
        prompt_tokens=None if times.prompt_tokens is None else _scaled_distribution(times.prompt_tokens, share),
        cold_tokens=None if times.cold_tokens is None else _scaled_distribution(times.cold_tokens, share),
        output_tokens=None if times.output_tokens is None else _scaled_distribution(times.output_tokens, share),
    )


def _scaled_distribution(held: Distribution, share: float) -> Distribution:
    return Distribution(held.limits, tuple(count * share for count in held.counts), held.total * share)


# --- As JSON values -------------------------------------------------------------------------------------------------


class InvalidBaseline(ValueError):  # noqa: N818 - it carries a verdict on the input
    """A document that is not a baseline of this version; the text names the field."""


def dump_baseline(baseline: Baseline) -> dict[str, Any]:
    """Return JSON values. Numbers keep four significant digits."""
    return {
        "baseline": VERSION,
        "saved_at_s": round(baseline.saved_at_s, 3),
        "configuration": baseline.configuration,
        "last_hour": baseline.last_hour,
        "counted_until_s": round(baseline.counted_until_s, 3),
        "times": [
            {
                "model": key.model,
                "pool": key.pool,
                "role": key.role.value,
                "class": key.request_class.value,
                "hour": hour,
                "seconds": _short(held.seconds),
                "seen_s": round(held.seen_s, 3),
                "requests": _short(held.times.requests),
                "phases": {phase.value: _dump(each) for phase, each in held.times.phases.items()},
                **{name: _dump(each) for name in _LENGTHS if (each := getattr(held.times, name)) is not None},
            }
            for (key, hour), held in baseline.times.items()
        ],
        "levels": [
            {
                "subject": subject,
                "name": name,
                "seen_s": round(level.seen_s, 3),
                "hours": {str(hour): [_short(total), _short(weight)] for hour, (total, weight) in level.hours.items()},
            }
            for (subject, name), level in baseline.levels.items()
        ],
    }


_LENGTHS = ("prompt_tokens", "cold_tokens", "output_tokens")


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _dump(held: Distribution) -> dict[str, Any]:
    """Buckets that hold nothing are left out."""
    return {
        "limits": list(held.limits),
        "counts": {str(index): _short(count) for index, count in enumerate(held.counts) if count},
        "total": _short(held.total),
    }


def load_baseline(document: object) -> Baseline:
    """Return the baseline of JSON values. Raises `InvalidBaseline` naming the field that cannot be read."""
    try:
        return _loaded(document)
    except (OverflowError, ValueError) as error:
        if isinstance(error, InvalidBaseline):
            raise
        raise InvalidBaseline(f"a number cannot be read: {error}") from None


def _loaded(document: object) -> Baseline:
    if not isinstance(document, dict) or document.get("baseline") != VERSION:
        raise InvalidBaseline(f"baseline: must be {VERSION}; save a new one with `hearth baseline save`")
    top = _Reader("", document)
    saved_at_s = top.number("saved_at_s")
    times: dict[tuple[TrafficKey, int], HourTimes] = {}
    for index, entry in enumerate(_list(document, "times", (MAX_KINDS + 1) * HOURS)):
        with_place = _Reader(f"times.{index}", entry)
        times[with_place.key(), with_place.hour()] = with_place.hour_times(saved_at_s)
    levels: dict[tuple[str, str], Level] = {}
    for index, entry in enumerate(_list(document, "levels", MAX_LEVELS)):
        reader = _Reader(f"levels.{index}", entry)
        levels[reader.text("subject"), reader.text("name")] = reader.level(saved_at_s)
    last_hour = document.get("last_hour")
    return Baseline(
        saved_at_s=saved_at_s,
        configuration=top.text("configuration"),
        times=times,
        levels=levels,
        last_hour=last_hour if isinstance(last_hour, int) else None,
        counted_until_s=top.number("counted_until_s"),
    )


def _list(document: Mapping[str, Any], name: str, limit: int) -> list[Any]:
    held = document.get(name)
    if not isinstance(held, list) or len(held) > limit:
        raise InvalidBaseline(f"{name}: must be a list of at most {limit} entries")
    return held


class _Reader:
    """Reads the fields of one entry."""

    def __init__(self, place: str, entry: object) -> None:
        self._place = place
        if not isinstance(entry, dict):
            raise self._fault("", "must be an object")
        self._entry: dict[str, Any] = entry

    def _fault(self, name: str, text: str) -> InvalidBaseline:
        return InvalidBaseline(f"{'.'.join(filter(None, (self._place, name)))}: {text}")

    def text(self, name: str) -> str:
        held = self._entry.get(name)
        if not isinstance(held, str) or len(held) > MAX_TEXT_CHARS:
            raise self._fault(name, "must be a short text")
        return held

    def number(self, name: str) -> float:
        return self._number(name, self._entry.get(name))

    def _number(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise self._fault(name, "must be a number, 0 or more")
        return float(value)

    def hour(self) -> int:
        hour = self._entry.get("hour")
        if not isinstance(hour, int) or not 0 <= hour < HOURS:
            raise self._fault("hour", "must be an hour of the week, 0 to 167")
        return hour

    def key(self) -> TrafficKey:
        try:
            role, request_class = Role(self.text("role")), RequestClass(self.text("class"))
        except ValueError as error:
            raise self._fault("role or class", str(error)) from None
        return TrafficKey(self.text("model"), self.text("pool"), role, request_class)

    def seen_s(self, saved_at_s: float) -> float:
        """When it was last seen; when it was saved where an older version has written it."""
        return self.number("seen_s") if "seen_s" in self._entry else saved_at_s

    def hour_times(self, saved_at_s: float) -> HourTimes:
        phases = self._entry.get("phases")
        if not isinstance(phases, dict) or not set(phases) <= set(Phase):
            raise self._fault("phases", "must be an object of known phases")
        lengths = {name: self._distribution(name, self._entry[name]) for name in _LENGTHS if name in self._entry}
        seconds = self.number("seconds")
        times = RequestTimes(
            start_s=0.0,
            end_s=seconds,
            requests=self.number("requests"),
            phases={Phase(name): self._distribution(f"phases.{name}", held) for name, held in phases.items()},
            **lengths,
        )
        return HourTimes(times, seconds, self.seen_s(saved_at_s))

    def _distribution(self, name: str, held: object) -> Distribution:
        if not isinstance(held, dict) or not isinstance(held.get("limits"), list) or len(held["limits"]) > MAX_LIMITS:
            raise self._fault(name, "must have limits, counts and a total")
        limits = tuple(self._number(name, limit) for limit in held["limits"])
        counts = [0.0] * (len(limits) + 1)
        given = held.get("counts")
        if list(limits) != sorted(set(limits)) or 0.0 in limits or not isinstance(given, dict):
            raise self._fault(name, "must have ascending limits above 0 and an object of counts")
        for place, count in given.items():
            if not str(place).isdigit() or int(place) > len(limits):
                raise self._fault(name, "has a count outside of its limits")
            counts[int(place)] = self._number(name, count)
        return Distribution(limits, tuple(counts), self._number(name, held.get("total")))

    def level(self, saved_at_s: float) -> Level:
        hours = self._entry.get("hours")
        if not isinstance(hours, dict) or len(hours) > HOURS:
            raise self._fault("hours", "must be an object of hours")
        found: dict[int, tuple[float, float]] = {}
        for hour, pair in hours.items():
            if not str(hour).isdigit() or int(hour) >= HOURS or not isinstance(pair, list) or len(pair) != 2:
                raise self._fault("hours", "must hold a sum and a number of values by hour, 0 to 167")
            found[int(hour)] = (self._number("hours", pair[0]), self._number("hours", pair[1]))
        return Level(found, self.seen_s(saved_at_s))


def total_requests(times: Iterable[RequestTimes]) -> float:
    """Return how many requests there were."""
    return sum(each.requests for each in times)
