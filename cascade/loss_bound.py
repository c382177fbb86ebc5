"""Is a mean loss below a limit? A one-sided test for losses between -1 and 1 whatever the sample.

The losses of a rule are score differences: 1 where a kept answer is wrong and the largest model's is right, -1 the
other way round, 0 where both are alike or the answer was not kept; graded scores give anything between. The statistic
is a score statistic: the mean's distance from the limit over its standard error **as if the true mean was at the
limit**, with the likeliest distribution of the losses that has that mean (Tango, Statistics in Medicine 1998, for
paired 0/1 scores; Owen's empirical likelihood with room for losses of 1 that were never seen, for graded ones). It is
nearly as sharp as the normal approximation and, unlike it, right where losses are rare.

How far is far enough is not taken from a table: `critical_value` searches the distance whose true error, summed exactly
over all outcomes and taken at its worst over the unknown share of gains, is at most the error allowed. With no loss and
no gain seen this is Clopper and Pearson's bound. For graded losses the same distance is used: they are less dispersed
than 0/1 losses of the same mean, and `tests/cascade/test_loss_bound.py` tries that on skewed ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil, exp, inf, lgamma, log, log1p, sqrt
from statistics import NormalDist

TERNARY = (-1.0, 0.0, 1.0)

EXACT_UP_TO = 4_000
"""Examples. With more the exact distance only falls towards the normal one, so this one stays on the safe side."""

GAIN_SHARES = (0.0, 1e-3, 3e-3, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3)
"""Shares of gains among which the worst is sought; between them the error hardly moves."""

NORMAL_ERROR_SHARE = 0.82
"""Of the error allowed, as much as the normal distance may use: what is not a sum over all outcomes (graded losses, a
distance taken at another size) has the rest. It costs about 3 % of what can be saved."""

MAX_DISTANCE = 4.0
HALVINGS = 9
"""Halvings of the interval in which the distance lies: to within 0.005."""


@lru_cache(maxsize=256)
def critical_value(examples: int, max_loss: float, error: float) -> float:
    """The distance below the limit from which on a mean of `examples` losses shows that the true one is below it.

    In standard errors; inf where no outcome could show it: with `examples` below log(error) / log(1 - max_loss).
    """
    if not 0.0 < max_loss < 1.0 or examples < min_examples(max_loss, error):
        return inf
    size = min(examples, EXACT_UP_TO)
    near, far = NormalDist().inv_cdf(1.0 - NORMAL_ERROR_SHARE * error), MAX_DISTANCE
    if _worst_error(size, max_loss, near) <= error:
        return near
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        if _worst_error(size, max_loss, middle) <= error:
            far = middle
        else:
            near = middle
    return far


def min_examples(max_loss: float, error: float) -> int:
    """Examples without which nothing can be shown, were there no loss among them at all."""
    return ceil(log(error) / log1p(-max_loss) - 1e-9)


def distance(counts: Sequence[float], levels: Sequence[float], max_loss: float) -> float:
    """How far the mean lies below the limit, in standard errors at the limit; negative above it.

    `counts` says how many losses are at each of the `levels`, which rise from -1 to 1.
    """
    total = sum(counts)
    mean = sum(count * level for count, level in zip(counts, levels, strict=True)) / total
    if len(levels) == len(TERNARY):
        variance = _ternary_variance(counts[2], counts[0], total, max_loss)
    elif mean < max_loss:
        variance = _graded_variance(counts, levels, total, max_loss)
    else:
        return -inf if mean > max_loss else 0.0
    return (max_loss - mean) / sqrt(variance / total)


def _ternary_variance(losses: float, gains: float, total: float, limit: float) -> float:
    """Of one loss, where the shares of losses and gains are the likeliest that differ by the limit."""
    half = (losses + gains) * (1.0 - limit) / 2 - gains * limit - (total - losses - gains) * limit
    # The share of gains q solves total q^2 - half q - gains limit (1 - limit) / 2 = 0.
    share = (half + sqrt(half * half + 2.0 * total * gains * limit * (1.0 - limit))) / (2.0 * total)
    return 2.0 * max(0.0, share) + limit - limit * limit


def _graded_variance(counts: Sequence[float], levels: Sequence[float], total: float, limit: float) -> float:
    """The same by empirical likelihood: weights 1 / (1 - t (level - limit)), what is left over goes to a loss of 1."""
    seen = [(count / total, level - limit) for count, level in zip(counts, levels, strict=True) if count]
    lowest, highest = 0.0, (1.0 - 1e-9) / (1.0 - limit)
    for _ in range(40):
        tilt = (lowest + highest) / 2
        if sum(part * away / (1.0 - tilt * away) for part, away in seen) < 0.0:
            lowest = tilt
        else:
            highest = tilt
    weights = [(part / (1.0 - lowest * away), away) for part, away in seen]
    missing = max(0.0, 1.0 - sum(weight for weight, _ in weights))
    return sum(weight * away * away for weight, away in weights) + missing * (1.0 - limit) ** 2


def _worst_error(examples: int, limit: float, far: float) -> float:
    """The greatest chance, over the share of gains, of showing a loss below the limit where it is at the limit."""
    shares = [share for share in GAIN_SHARES if 2 * share + limit < 1.0]
    max_losses: dict[int, int] = {}
    return max(_error(examples, limit, share, far, max_losses) for share in shares)


def _error(examples: int, limit: float, share: float, far: float, max_losses: dict[int, int]) -> float:
    chance = (share + limit) / (1.0 - share)
    error = 0.0
    for gains, part in _likely(examples, share):
        if gains not in max_losses:
            max_losses[gains] = _max_losses(examples, gains, limit, far)
        if max_losses[gains] >= 0:
            error += part * probability_up_to(max_losses[gains], examples - gains, chance)
    return error


def _max_losses(examples: int, gains: int, limit: float, far: float) -> int:
    """How many losses may come with `gains` gains for the mean to be far enough below the limit; -1 for none."""
    low, high = -1, min(examples - gains, gains + int(limit * examples) + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if distance((gains, examples - gains - middle, middle), TERNARY, limit) >= far:
            low = middle
        else:
            high = middle - 1
    return low


def _likely(examples: int, share: float) -> Iterator[tuple[int, float]]:
    """Numbers of gains and their chances, except for the least likely 1e-9 or so."""
    spread = 6.5 * sqrt(examples * share * (1.0 - share)) + 6.0
    lowest = max(0, int(examples * share - spread))
    highest = min(examples, int(examples * share + spread)) if share else 0
    for gains in range(lowest, highest + 1):
        yield gains, _chance(gains, examples, share)


def _chance(successes: int, trials: int, share: float) -> float:
    if share <= 0.0:
        return 1.0 if successes == 0 else 0.0
    ways = lgamma(trials + 1) - lgamma(successes + 1) - lgamma(trials - successes + 1)
    return exp(ways + successes * log(share) + (trials - successes) * log1p(-share))


def probability_up_to(successes: int, trials: int, share: float) -> float:
    """Return the binomial distribution function: the probability of at most so many successes."""
    if successes >= trials:
        return 1.0
    odds = (1.0 - share) / share
    chance = total = _chance(successes, trials, share)
    for below in range(successes, 0, -1):
        chance *= below / (trials - below + 1) * odds
        total += chance
        if chance < 1e-13 * total and chance < 1e-16:
            break
    return min(1.0, total)
