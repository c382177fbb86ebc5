"""The queueing estimate: which share of requests misses its first-token or token-pace objective on a number of engines.

Requests that would wait longer than their slack are rejected, as the gateway's admission does. A miss is a rejection.
"""

from __future__ import annotations

from math import exp, log, sqrt

MAX_EXPONENT = 60.0
MAX_DEVIATIONS = 8.0
MIN_SHARE = 1e-3
"""Of the engines' time, that a tier keeps at least below the tiers of higher priority."""


def missed_share(utilisation: float, engines: float, service_s: float, slack_s: float, scv: float = 1.0) -> float:
    """Return the share of requests that cannot begin within `slack_s`, between 0 and 1.

    `utilisation` is offered work per second over the engines' capacity and may exceed 1. `service_s` is the mean work
    of a request in engine-seconds, `scv` the mean of the squared coefficients of variation of arrivals and of work.

    For one engine and exponential work this is the exact loss of a queue with that patience (M/M/1+D). Several engines
    enter by the usual approximation of the probability of waiting, rho ** (sqrt(2 (n + 1)) - 1), variability by the
    mean of both coefficients. Under overload it tends to 1 - 1 / utilisation, which is exact in the fluid limit.
    """
    if utilisation <= 0:
        return 0.0
    pace = engines / max(service_s * max(scv, 0.1), 1e-9)
    if abs(utilisation - 1) < 1e-6:
        return 1 / (sqrt(2 * (engines + 1)) + pace * max(slack_s, 0.0))
    exponent = pace * (utilisation - 1) * max(slack_s, 0.0) + (sqrt(2 * (engines + 1)) - 1) * log(utilisation)
    if abs(exponent) > MAX_EXPONENT:
        return 1 - 1 / utilisation if exponent > 0 else 0.0
    waiting = exp(exponent)
    return min(max((1 - utilisation) * waiting / (1 - utilisation * waiting), 0.0), 1.0)


def overflow_share(mean: float, capacity: float, peakedness: float = 1.0) -> float:
    """Return the share of sequences beyond `capacity`, where a mean of `mean` would run at once without a bound.

    The number is taken as normal with variance `peakedness` times the mean: sequences that arrive at random and run
    independently make a Poisson number, whatever the distribution of their lengths.
    """
    if mean <= 0:
        return 0.0
    deviation = sqrt(mean * max(peakedness, 0.1))
    z = (capacity - mean) / deviation
    if z > MAX_DEVIATIONS:
        return 0.0
    density = exp(-min(z * z / 2, MAX_EXPONENT)) / 2.506_628_274_631
    return min(max(deviation * (density - z * _upper_tail(z)) / mean, 0.0), 1.0)


def _upper_tail(z: float) -> float:
    """Return the probability that a standard normal exceeds z; error below 1e-5 (Abramowitz and Stegun 26.2.16)."""
    if z < 0:
        return 1 - _upper_tail(-z)
    if z > 8:
        return 0.0
    t = 1 / (1 + 0.332_67 * z)
    return exp(-z * z / 2) / 2.506_628_274_631 * t * (0.436_183_6 + t * (-0.120_167_6 + t * 0.937_298_0))
