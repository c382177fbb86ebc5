"""Have accepted answers become worse since calibration? A sequential test on the last comparisons.

A comparison of an accepted answer with the next model's has the outcome +1 where the accepted one is worse, -1 where it
is better, 0 where neither is. Losses and gains of the last comparisons are counted apart. A reference says how
often the **same** comparison came out worse and better while the guarantee was known to hold: on the labelled examples,
or on the first samples of production. Errors of the comparison, answers that differ harmlessly, and gains are in the
reference as they are in the samples, so they cancel out.

Two conditions raise the alarm together. The number of losses reaches a limit; and the window's own net loss, losses
less gains, is above what is allowed, so that harder traffic, in which both rise, raises none.

The limits: without a shift, reference and samples are exchangeable, so the losses of a window follow a beta-binomial
distribution (Jeffreys prior), in which the uncertainty of a small reference is included. The probability that they
reach a limit within `RUN` comparisons is taken as

    P(L >= limit) + (RUN - window) P(L_t < limit <= L_t+1) / clump,

the first term while the window fills, the second as the expected number of up-crossings of a moving sum by the expected
number of them that come together (Poisson clumping; Aldous, 1989): at a limit c the sum falls with rate c / window and
rises with rate p, so clump = 1 / (1 - p window / c). `bench/cascade` compares it with simulated runs.

`stop` is the smallest limit that keeps this below the window's share of `FALSE_STOP`; where a break would still be
noticed it is higher. `suspect` keeps the probability below the share of `FALSE_SUSPICION`, or below that of
`FALSE_STOP` where a break is noticed even so. The shortest of `WINDOWS` always counts; where it does not notice a break
with the probability `NOTICED`, so does the shortest one that does, or else the longest.

Losses without a shift are concentrated in accepted answers whose signal is low. A break that does not follow the signal
shows among the surest of them first, where hardly any loss is expected: a window of these alone counts beside the
shortest where it notices a break more often.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from math import exp, lgamma, sqrt
from statistics import NormalDist

from cascade.calibration_file import SUREST_TENTHS, TENTHS

WINDOWS = (200, 400, 800, 1_600)
"""Comparisons that a window may have. A break shall be noticed within as many."""
RUN = 1_000
"""Comparisons within which a false alarm has at most the stated probability."""
FALSE_STOP = 0.05
FALSE_SUSPICION = 0.25
SHORT_SHARE = 0.7
"""Of both, the share of the shortest window where two count; of its share, that of the surest answers."""
SUREST_PART = SUREST_TENTHS / TENTHS
"""Of accepted answers, the surest."""
NOTICED = 0.97
"""Probability of noticing a break that the choice of a limit keeps, where it can."""
MAX_MISSED = 0.7
"""Of the breaks that the whole window misses, as many may a window of the surest miss to take its share of the errors.
"""
PRIOR = 0.5
"""Of a beta distribution, on either side."""


@dataclass(frozen=True, slots=True)
class DriftReference:
    """Outcomes of comparisons while the guarantee was known to hold."""

    samples: float
    worse: float
    """Of them, accepted answers that were worse than the next model's; graded ones count in part."""
    better: float

    @property
    def net(self) -> float:
        """Mean outcome, -1 to 1; 0 without samples."""
        return (self.worse - self.better) / self.samples if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """Losses in the window from which on a shift is suspected, and the guarantee withdrawn."""

    window: int
    """Comparisons in the window."""
    shadows: int
    """Shadow samples that fill it: more than `window` where it counts the surest answers only."""
    is_of_surest: bool
    suspect: int
    stop: int
    max_net: float
    """Mean outcome of the window that is allowed; up to it no number of losses stops anything."""
    suspicious_net: float
    """The same for a suspicion."""
    false_suspicion: float
    """Probability of a suspicion within `RUN` comparisons without a shift."""
    false_stop: float
    noticed: float
    """Probability that a break is suspected within a window of comparisons, by normal approximation."""


@lru_cache(maxsize=64)
def alarm_limits(
    reference: DriftReference, slack: float, shift: float, surest: DriftReference | None = None
) -> tuple[AlarmLimits, ...]:
    """Return the limits of each window for this reference, the shortest window first.

    `slack` is by how much the mean outcome may rise, `shift` by how much a break raises it; both above 0. `surest` is
    the part of the reference that is of the surest answers; None: not known.
    """
    first = _short_limits(reference, slack, shift, surest, 1.0)
    if any(limits.noticed >= NOTICED for limits in first):
        return first
    for window in WINDOWS[1:]:
        longer = _limits_of(window, reference, slack, shift, 1.0 - SHORT_SHARE)
        if longer.noticed >= NOTICED:
            break
    return (*_short_limits(reference, slack, shift, surest, SHORT_SHARE), longer)


def _short_limits(
    reference: DriftReference, slack: float, shift: float, surest: DriftReference | None, share: float
) -> tuple[AlarmLimits, ...]:
    """Return the limits of the shortest window, beside one of the surest answers where that notices more."""
    alone = _limits_of(WINDOWS[0], reference, slack, shift, share)
    if surest is None or not surest.samples:
        return (alone,)
    # A rise among the surest alone breaks the guarantee only where it is as much higher.
    own_slack = slack / SUREST_PART
    own = _limits_of(WINDOWS[0], surest, own_slack, max(shift, own_slack), share * SHORT_SHARE, is_of_surest=True)
    if 1.0 - own.noticed > MAX_MISSED * (1.0 - alone.noticed):
        return (alone,)
    return (_limits_of(WINDOWS[0], reference, slack, shift, share * (1.0 - SHORT_SHARE)), own)


def _limits_of(
    shadows: int,
    reference: DriftReference,
    slack: float,
    shift: float,
    share: float,
    *,
    is_of_surest: bool = False,
) -> AlarmLimits:
    window, run = shadows, RUN
    if is_of_surest:
        window, run = int(shadows * SUREST_PART), int(RUN * SUREST_PART)
    falses = _false_alarms(window, reference, run)
    total = reference.samples + 3 * PRIOR
    worse, better = (reference.worse + PRIOR) / total, (reference.better + PRIOR) / total
    # A break turns accepted answers into losses, those among them that were gains too.
    turned = min(1.0, shift / (1.0 - worse + better))
    # What a small reference leaves open adds to the spread of the window where its probability is stated.
    open_worse, open_net = (
        (1.0 - turned) ** 2 * spread / (reference.samples + 1.0)
        for spread in (worse * (1.0 - worse), worse + better - (worse - better) ** 2)
    )
    worse, better = worse + turned * (1.0 - worse), better * (1.0 - turned)
    expected, variance = window * worse, window * worse * (1.0 - worse)
    losses = NormalDist(expected, max(sqrt(variance + window**2 * open_worse), 1e-9))
    net = NormalDist(worse - better, max(sqrt((worse + better - (worse - better) ** 2) / window + open_net), 1e-9))
    reachable = int(NormalDist(expected, max(sqrt(variance), 1e-9)).inv_cdf(1.0 - NOTICED))
    stop = min(window, max(_lowest(falses, FALSE_STOP * share), reachable))
    suspect = max(_lowest(falses, FALSE_SUSPICION * share), min(_lowest(falses, FALSE_STOP * share), reachable))
    suspicious_net = reference.net + slack / 2
    return AlarmLimits(
        window=window,
        shadows=shadows,
        is_of_surest=is_of_surest,
        suspect=suspect,
        stop=stop,
        max_net=reference.net + slack,
        suspicious_net=suspicious_net,
        false_suspicion=falses[suspect],
        false_stop=falses[stop],
        noticed=max(0.0, 1.0 - losses.cdf(suspect - 0.5) - net.cdf(suspicious_net)),
    )


def _lowest(falses: list[float], highest: float) -> int:
    return next((at for at in range(1, len(falses)) if falses[at] <= highest), len(falses) - 1)


def _false_alarms(window: int, reference: DriftReference, run: int) -> list[float]:
    """By limit, 0 to `window`: probability that losses reach it within a `run` of samples without a shift."""
    losses, others = reference.worse + PRIOR, max(0.0, reference.samples - reference.worse) + PRIOR
    shared = window - 1
    scale = lgamma(shared + 1) - lgamma(losses + others + shared) + lgamma(losses + others)
    left = losses + others + shared
    # By losses of the window: their probability, and that of rising to them with one more sample.
    counts, rises = [0.0] * (window + 1), [0.0] * (window + 1)
    for seen in range(shared + 1):
        log_likelihood = scale + _log_rising(losses, seen) + _log_rising(others, shared - seen)
        likelihood, new = exp(log_likelihood), (losses + seen) / left
        counts[seen + 1] += likelihood * new
        counts[seen] += likelihood * (1.0 - new)
        # The new sample is a loss, and the one that leaves the window is none.
        rising = likelihood * new * (1.0 - (losses + seen + 1.0) / (left + 1.0))
        rises[seen + 1] += rising * max(0.0, 1.0 - new * window / (seen + 1))
    found, tail = [0.0] * (window + 1), 0.0
    for limit in range(window, -1, -1):
        tail += counts[limit]
        found[limit] = min(1.0, tail + max(0, run - window) * rises[limit])
    return found


def _log_rising(weight: float, count: int) -> float:
    """Return the logarithm of weight (weight + 1) ... (weight + count - 1) / count!."""
    return lgamma(weight + count) - lgamma(weight) - lgamma(count + 1)


class NetLossWindow:
    """The last outcomes, a suspicion that they raise and lower, and an alarm that stays until an operator acts."""

    __slots__ = ("_outcomes", "better", "is_raised", "is_suspected", "limits", "worse")

    def __init__(self, limits: AlarmLimits) -> None:
        self.limits = limits
        self._outcomes: deque[int] = deque(maxlen=limits.window)
        self.worse = 0
        """Losses among the last outcomes."""
        self.better = 0
        self.is_suspected = False
        self.is_raised = False

    @property
    def samples(self) -> int:
        """Outcomes in the window."""
        return len(self._outcomes)

    @property
    def level(self) -> float:
        """Level of the alarm, 0 to 1: raised at 1."""
        return 1.0 if self.is_raised else min(1.0, self.worse / self.limits.stop)

    def observe(self, outcome: int) -> None:
        """Add an outcome, -1, 0 or 1."""
        if len(self._outcomes) == self.limits.window:
            self._count(self._outcomes[0], -1)
        self._outcomes.append(outcome)
        self._count(outcome, 1)
        net = (self.worse - self.better) / len(self._outcomes)
        self.is_suspected = self.worse >= self.limits.suspect and net > self.limits.suspicious_net
        self.is_raised = self.is_raised or (self.worse >= self.limits.stop and net > self.limits.max_net)

    def _count(self, outcome: int, step: int) -> None:
        if outcome > 0:
            self.worse += step
        elif outcome < 0:
            self.better += step
