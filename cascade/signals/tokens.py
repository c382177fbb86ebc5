"""Log-probabilities of tokens to a few numbers, all of them higher where the model was surer.

For a held-back window, for reasoning, or for a whole answer: the same sums over other tokens. All are means, quantiles
or least values over tokens, never sums, so that long answers look no worse for being long (Gupta et al., ICLR 2024).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import exp, inf, isfinite, log, nan

LOW_QUANTILE = 0.1
"""The quantile that represents the doubtful tokens of an answer."""

MIN_LOGPROB = -100.0
"""What an engine's minus infinity (or -9999) counts as: the token was all but impossible."""

TokenLogprobs = tuple[float, Sequence[float]]
"""The log-probability of the token that was chosen, and those of the likeliest tokens at its place, in any order."""


@dataclass(frozen=True, slots=True)
class TokenSignals:
    """Signals of an answer; all nan where it has no tokens."""

    tokens: int = 0
    margin: float = nan
    """Mean of the probability of the likeliest token less that of the second likeliest, 0 to 1."""
    low_margin: float = nan
    """The margin that a tenth of the tokens stay below."""
    mean: float = nan
    """Mean log-probability of the chosen tokens: their log-likelihood, normalised by length."""
    low: float = nan
    """The log-probability that a tenth of the chosen tokens stay below."""
    least: float = nan
    """Log-probability of the least likely chosen token."""
    entropy: float = nan
    """Mean entropy in nats, **negated** so that higher is surer; what the top tokens leave counts as one more token."""

    def value_of(self, name: str) -> float:
        """The signal that a calibration file names; nan for an unknown name."""
        return float(getattr(self, name)) if name in SIGNALS else nan


SIGNALS = tuple(field.name for field in fields(TokenSignals) if field.name != "tokens")
"""What may be calibrated on, by name."""

SIGNAL_RANGES: Mapping[str, tuple[float, float]] = {
    "margin": (0.0, 1.0),
    "low_margin": (0.0, 1.0),
    "mean": (-inf, 0.0),
    "low": (-inf, 0.0),
    "least": (-inf, 0.0),
    "entropy": (-inf, 0.0),
}
"""The least and the greatest value of each signal."""


def read_signals(tokens: Iterable[TokenLogprobs]) -> TokenSignals:
    """The signals of these tokens. A token whose log-probability is nan or missing (above 0) counts as impossible."""
    chosen: list[float] = []
    margins: list[float] = []
    entropies: list[float] = []
    for logprob, top in tokens:
        chosen.append(_bounded(logprob))
        likeliest = sorted(map(_bounded, top or (logprob,)), reverse=True)
        margins.append(_margin(likeliest))
        entropies.append(_entropy(likeliest))
    count = len(chosen)
    if not count:
        return TokenSignals()
    return TokenSignals(
        tokens=count,
        margin=sum(margins) / count,
        low_margin=quantile(margins, LOW_QUANTILE),
        mean=sum(chosen) / count,
        low=quantile(chosen, LOW_QUANTILE),
        least=min(chosen),
        entropy=-sum(entropies) / count,
    )


def quantile(values: Sequence[float], part: float) -> float:
    """The value that this part of them stays below, straight between two of them; `values` not empty."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _bounded(logprob: float) -> float:
    """A log-probability; rounding may leave it a hair above 0."""
    return min(0.0, max(MIN_LOGPROB, logprob)) if isfinite(logprob) and logprob < 1e-3 else MIN_LOGPROB


def _margin(likeliest: Sequence[float]) -> float:
    second = exp(likeliest[1]) if len(likeliest) > 1 else 1.0 - exp(likeliest[0])
    return max(0.0, exp(likeliest[0]) - second)


def _entropy(likeliest: Sequence[float]) -> float:
    seen = [exp(logprob) for logprob in likeliest]
    rest = 1.0 - sum(seen)
    known = -sum(part * logprob for part, logprob in zip(seen, likeliest, strict=True))
    return known - rest * log(rest) if rest > 1e-12 else known
