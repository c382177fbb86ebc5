"""Forecast of offered work per model and tier: time of day and of the week, trend, level shifts, missing hours.

Four ways are followed side by side: the present level, the level with its slope, and the profiles of day and week
scaled by the last quarter of an hour. Each is judged by its own error at the horizon in use. A profile counts only as
far as it was better than the first two; without a pattern the forecast is the reactive figure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log, sqrt

from supply.load import NO_WORK, OfferedWork

BIN_S = 300.0
DAY_BINS = 288
WEEK_BINS = 2016

OUTPUT_TOKEN_WEIGHT = 4.0
"""Prompt tokens that an output token counts for in the one figure that is forecast."""

LEVEL_S = 120.0
"""Time constant of the level."""
SHIFT_S = 20.0
"""The same while the work is clearly above it."""
SHIFT_NOISES = 3.0
"""Clearly: by a tenth and this many standard deviations of the measurement."""
SLOPE_S = 600.0
DAMPING = 0.7
"""Share of a slope that is taken to last until the horizon."""

DAY_MEMORY = 5.0
WEEK_MEMORY = 3.0
"""Days and weeks that a bin of a profile averages over."""

RATIO_BINS = 3
"""Closed bins by which a profile is scaled to the present."""
MAX_RATIO = 4.0

JUDGE_EVERY_S = 60.0
LOSS_S = 2 * 86_400.0
"""Time constant of the errors."""
OVER_WEIGHT = 0.3
"""Weight of the squared error where the forecast was too high, beside 1 where it was too low."""
FULL_SKILL = 0.25
"""Share by which a profile's loss must be lower than the reactive one's to be followed completely."""
MIN_JUDGED = 360.0
"""Judgements of a profile before it is followed: six hours."""
MAX_PENDING = 64

MIN_SPREAD = 0.03
MAX_SPREAD = 0.5
PRIOR_SPREAD = 0.15
PRIOR_JUDGED = 60.0
"""Judgements as which the prior counts: one jump on the first day does not make a rule."""

WAYS = ("level", "trend", "day", "week")
PROFILES = ("day", "week")


@dataclass(frozen=True, slots=True)
class PendingForecast:
    """What each way expected for a time that has not come yet; None: the way had no data."""

    at_s: float
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class WayError:
    """The record of one way: how often it was judged, its loss, and its mean squared error of logarithms."""

    judged: float = 0.0
    loss: float = 0.0
    square: float = PRIOR_SPREAD**2
    reactive_loss: float = 0.0
    """Of level or trend, whichever was better until then, at the same times."""


@dataclass(frozen=True, slots=True)
class WorkHistory:
    """What is remembered of one tier's offered work. A value; `observe` gives the next one."""

    level: OfferedWork = NO_WORK
    slope: float = 0.0
    """Of the figure, per second."""
    last_s: float | None = None
    noise_square: float = 0.0
    """Of the measurement: relative variance, smoothed."""
    level_square: float = 0.0
    """Relative variance of the level, by the noise of the measurements in it."""
    bin_at: int | None = None
    """Number of the open bin since the epoch."""
    bin_sum: float = 0.0
    bin_count: int = 0
    recent: tuple[tuple[int, float], ...] = ()
    """The last closed bins: number and mean."""
    day: tuple[float, ...] = ()
    day_seen: tuple[float, ...] = ()
    week: tuple[float, ...] = ()
    week_seen: tuple[float, ...] = ()
    pending: tuple[PendingForecast, ...] = ()
    judged_s: float = 0.0
    errors: tuple[WayError, ...] = (WayError(),) * len(WAYS)


@dataclass(frozen=True, slots=True)
class WorkForecast:
    """Expected work at a horizon, and how it came about."""

    work: OfferedWork
    """Per second: not below the present level."""
    spread: float
    """Standard deviation of the logarithm of actual over expected work."""
    way: str
    """The way that was followed: of `WAYS`."""
    weight: float
    """How far a profile was followed beyond the reactive figure, 0 to 1."""
    present: float
    reactive: float
    used: float
    """The figure that was followed: `reactive`, or more."""
    profile: float | None
    """Of the better profile: its maximum until the horizon."""
    errors: tuple[tuple[str, float], ...] = ()
    """Root mean square of the logarithm, by way, where it was judged."""
    noise: float = 0.0
    """Relative standard deviation of the level: what the number of requests behind it leaves open."""


def figure_of(work: OfferedWork) -> float:
    """Return work as one figure: prompt tokens per second, output tokens weighted."""
    return work.prefill_tokens + OUTPUT_TOKEN_WEIGHT * work.output_tokens


def observe(
    history: WorkHistory,
    work: OfferedWork,
    now_s: float,
    horizon_s: float,
    noise: float = 0.0,
    *,
    window_s: float = 0.0,
    is_rise: bool = False,
) -> WorkHistory:
    """Return the history with the work of now, in requests and tokens per second.

    `noise` is the relative standard deviation of the measurement, a mean over `window_s`: those of one window say
    little more than one of them. `is_rise`: the work of all tiers together is clearly above its level. A clock that
    goes back changes the level only.
    """
    value = figure_of(work)
    if history.last_s is None:
        history = replace(history, level=work, last_s=now_s, noise_square=noise * noise, level_square=noise * noise)
        return _binned(history, value, now_s)
    elapsed_s = now_s - history.last_s
    if elapsed_s <= 0:
        return replace(history, last_s=now_s) if elapsed_s < -BIN_S else history
    history = _judged(history, value, now_s)
    is_rise = is_rise or is_shift(value, figure_of(history.level), noise)
    history = _levelled(history, work, elapsed_s, noise, window_s, is_rise=is_rise)
    history = _binned(replace(history, last_s=now_s), value, now_s)
    if now_s - history.judged_s < JUDGE_EVERY_S and now_s >= history.judged_s:
        return history
    pending = PendingForecast(now_s + horizon_s, _expected(history, now_s, horizon_s))
    return replace(history, judged_s=now_s, pending=(*history.pending, pending)[-MAX_PENDING:])


def forecast(history: WorkHistory, now_s: float, horizon_s: float, *, use_profiles: bool = True) -> WorkForecast:
    """Return the highest work expected from now until the horizon; never less than the present level."""
    present = figure_of(history.level)
    values = _expected(history, now_s, horizon_s)
    level, trend = history.errors[0], history.errors[1]
    is_trend = trend.judged > 0 and trend.loss < level.loss and (values[1] or 0.0) > present
    reactive = max(present, (values[1] or 0.0) if is_trend else 0.0)
    way, weight, profile, used = ("trend" if is_trend else "level"), 0.0, None, reactive
    spread_square = history.errors[1 if is_trend else 0].square
    if use_profiles:
        best = max((at for at, name in enumerate(WAYS) if name in PROFILES), key=lambda at: _skill(history.errors[at]))
        weight = min(max(_skill(history.errors[best]) / FULL_SKILL, 0.0), 1.0)
        peak = _peak(history, WAYS[best], now_s, horizon_s) if weight > 0 else None
        if peak is None:
            weight = 0.0
        else:
            profile = peak
            used = reactive + weight * max(peak - reactive, 0.0)
            spread_square += weight * (min(history.errors[best].square, spread_square) - spread_square)
            way = WAYS[best] if used > reactive else way
    spread = min(max(sqrt(max(spread_square - history.noise_square, 0.0)), MIN_SPREAD), MAX_SPREAD)
    work = history.level.scaled(used / present) if present > 0 else _work_of(used)
    errors = tuple(
        (name, sqrt(error.square)) for name, error in zip(WAYS, history.errors, strict=True) if error.judged > 0
    )
    noise = sqrt(history.level_square)
    return WorkForecast(work, spread, way, weight, present, reactive, used, profile, errors, noise)


def _work_of(figure: float) -> OfferedWork:
    """Return work of a typical mixture, for a time that has had no work yet."""
    if figure <= 0:
        return NO_WORK
    prefill = figure / 2
    return OfferedWork(prefill / 1_000.0, prefill, prefill / OUTPUT_TOKEN_WEIGHT)


def is_shift(value: float, level: float, noise: float) -> bool:
    """Return whether work is clearly above its level."""
    return value > level * (1.1 + SHIFT_NOISES * noise)


def _levelled(
    history: WorkHistory, work: OfferedWork, elapsed_s: float, noise: float, window_s: float, *, is_rise: bool
) -> WorkHistory:
    level = figure_of(history.level)
    step = 1 - exp(-elapsed_s / (SHIFT_S if is_rise else LEVEL_S))
    smoothed = history.level.scaled(1 - step) + work.scaled(step)
    slope_step = 1 - exp(-elapsed_s / SLOPE_S)
    change = (figure_of(smoothed) - level) / elapsed_s
    return replace(
        history,
        level=smoothed,
        slope=history.slope + slope_step * (change - history.slope),
        noise_square=history.noise_square + step * (noise * noise - history.noise_square),
        level_square=(1 - step) ** 2 * history.level_square + (step * noise) ** 2 * max(window_s / elapsed_s, 1.0),
    )


def _binned(history: WorkHistory, value: float, now_s: float) -> WorkHistory:
    number = int(now_s // BIN_S)
    if history.bin_at is None:
        return replace(history, bin_at=number, bin_sum=value, bin_count=1)
    if number == history.bin_at:
        return replace(history, bin_sum=history.bin_sum + value, bin_count=history.bin_count + 1)
    mean = history.bin_sum / max(history.bin_count, 1)
    closed = history.bin_at
    day, day_seen = _averaged(history.day, history.day_seen, DAY_BINS, closed % DAY_BINS, mean, DAY_MEMORY)
    week, week_seen = _averaged(history.week, history.week_seen, WEEK_BINS, closed % WEEK_BINS, mean, WEEK_MEMORY)
    return replace(
        history,
        bin_at=number,
        bin_sum=value,
        bin_count=1,
        recent=(*history.recent, (closed, mean))[-RATIO_BINS:],
        day=day,
        day_seen=day_seen,
        week=week,
        week_seen=week_seen,
    )


def _averaged(
    means: tuple[float, ...], seen: tuple[float, ...], size: int, at: int, value: float, memory: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    filled, counts = list(means or (0.0,) * size), list(seen or (0.0,) * size)
    counts[at] = min(counts[at] + 1, memory)
    filled[at] += (value - filled[at]) / counts[at]
    return tuple(filled), tuple(counts)


def _expected(history: WorkHistory, now_s: float, horizon_s: float) -> tuple[float | None, ...]:
    """Return what each way expects at the horizon."""
    level = figure_of(history.level)
    trend = max(level + DAMPING * history.slope * horizon_s, 0.0)
    return (level, trend, *(_profile_at(history, name, now_s + horizon_s) for name in PROFILES))


def _profile(history: WorkHistory, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (history.day, history.day_seen) if name == "day" else (history.week, history.week_seen)


def _ratio(history: WorkHistory, name: str) -> float | None:
    """Return actual over profile of the last closed bins: trend and level shifts; None where bins are missing."""
    means, seen = _profile(history, name)
    if not means or len(history.recent) < RATIO_BINS:
        return None
    actual = expected = 0.0
    for number, value in history.recent:
        at = number % len(means)
        if seen[at] < 2:  # the bin of now itself has entered the profile: one earlier period at least
            return None
        actual += value
        # without the value of now, which is part of the mean
        expected += max((means[at] * seen[at] - value) / (seen[at] - 1), 0.0)
    if expected <= 0:
        return 1.0
    return min(max(actual / expected, 1 / MAX_RATIO), MAX_RATIO)


def _profile_at(history: WorkHistory, name: str, at_s: float) -> float | None:
    """Return the scaled profile at a time, linear between the middles of bins."""
    ratio = _ratio(history, name)
    means, seen = _profile(history, name)
    if ratio is None:
        return None
    position = at_s / BIN_S - 0.5
    first = int(position // 1)
    low, high = first % len(means), (first + 1) % len(means)
    if not seen[low] or not seen[high]:
        return None
    share = position - first
    return ratio * (means[low] * (1 - share) + means[high] * share)


def _peak(history: WorkHistory, name: str, now_s: float, horizon_s: float) -> float | None:
    """Return the highest scaled profile from now until the horizon; bins without data are left out."""
    steps = max(int(horizon_s // (BIN_S / 2)), 1)
    values = (_profile_at(history, name, now_s + horizon_s * step / steps) for step in range(steps + 1))
    return max((value for value in values if value is not None), default=None)


def _judged(history: WorkHistory, value: float, now_s: float) -> WorkHistory:
    """Compare what was expected for now with what came, and drop what a jump of the clock left behind."""
    due = [one for one in history.pending if one.at_s <= now_s]
    if not due:
        return history
    errors = list(history.errors)
    step = JUDGE_EVERY_S / LOSS_S
    for one in due:
        if now_s - one.at_s > 2 * JUDGE_EVERY_S:
            continue
        squares = [_log_error(value, expected) for expected in one.values]
        reactive = _loss(squares[1 if errors[1].loss < errors[0].loss else 0])
        for at, error in enumerate(squares):
            if error is not None:
                errors[at] = _updated(errors[at], error, reactive, step)
    waiting = tuple(one for one in history.pending if one.at_s > now_s)
    return replace(history, pending=waiting, errors=tuple(errors))


def _log_error(actual: float, expected: float | None) -> float | None:
    if expected is None or (actual <= 0 and expected <= 0):
        return None
    floor = 0.02 * max(actual, expected)
    return log(max(actual, floor) / max(expected, floor))


def _loss(error: float | None) -> float:
    return 0.0 if error is None else error * error * (1.0 if error > 0 else OVER_WEIGHT)


def _updated(error: WayError, value: float, reactive: float, step: float) -> WayError:
    judged = error.judged + 1
    weight = max(step, 1 / (judged + PRIOR_JUDGED))
    return WayError(
        judged,
        error.loss + weight * (_loss(value) - error.loss),
        error.square + weight * (min(value * value, 1.0) - error.square),
        error.reactive_loss + weight * (reactive - error.reactive_loss),
    )


def _skill(error: WayError) -> float:
    """Return by which share the loss is below the reactive one's at the same times; 0 until it was judged enough."""
    if error.judged < MIN_JUDGED or error.reactive_loss <= 0:
        return 0.0
    return 1 - error.loss / error.reactive_loss
