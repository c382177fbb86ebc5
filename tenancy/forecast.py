"""How long answers will be: any quantile of what a tenant's requests to a model have got, learned as they end.

Lengths are in buckets that grow by a quarter of a doubling. With few observations a tenant's forecast leans on those
of the model's other tenants, and these on a prior. Independent of queue and clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import log2
from typing import TypeVar

from routing.request import DEFAULT_OUTPUT_TOKENS

BUCKETS_PER_DOUBLING = 4
BUCKETS = 20 * BUCKETS_PER_DOUBLING
"""Up to a million tokens."""

MEMORY = 1_000.0
"""Answers that a table remembers: the shortest in a hundred wants some hundreds."""

DECAY = 0.9
"""What is left of a full table before it goes on."""

PRIOR_WEIGHT = 30.0
"""Weight of other tenants' observations, in responses of the tenant's own."""

MAX_TABLES = 4_096
"""Tenants and models with a table of their own."""

STALE = 0.02
"""A quantile is recomputed after this relative growth of the observations."""

Key = tuple[str | None, str]
K = TypeVar("K")


class LengthHistogram:
    """A histogram that forgets."""

    __slots__ = ("_counts", "mean", "observed")

    def __init__(self) -> None:
        self._counts = [0.0] * BUCKETS
        self.observed = 0.0
        self.mean = float(DEFAULT_OUTPUT_TOKENS)

    def observe(self, tokens: float) -> None:
        """Record the length of a response."""
        if self.observed >= MEMORY:
            self._counts = [count * DECAY for count in self._counts]
            self.observed *= DECAY
        self._counts[min(int(log2(max(tokens, 1.0)) * BUCKETS_PER_DOUBLING), BUCKETS - 1)] += 1.0
        self.observed += 1.0
        self.mean += (tokens - self.mean) / self.observed

    def quantile(self, part: float) -> float:
        """Tokens that all but this part have: the lower edge of the bucket in which it is reached."""
        sought = part * self.observed
        for at, count in enumerate(self._counts):
            sought -= count
            if sought < 0:
                return float(2.0 ** (at / BUCKETS_PER_DOUBLING))
        return 0.0


class OutputLengthForecast:
    """Tables by tenant and model, and by model."""

    def __init__(self, *, shares: bool = True) -> None:
        """`shares`: a tenant with few observations leans on other tenants'. Without that nothing that one tenant
        does changes what is expected of another.
        """
        self._shares = shares
        self._tables: OrderedDict[Key, LengthHistogram] = OrderedDict()
        self._of_model: OrderedDict[str, LengthHistogram] = OrderedDict()
        self._reported: dict[tuple[str | None, str, float], tuple[float, float]] = {}

    def observe(self, tenant: str | None, model: str, tokens: int) -> None:
        """Record the length of a response."""
        if self._shares:
            lengths = self._of_model.get(model)
            (_put(self._of_model, model) if lengths is None else lengths).observe(tokens)
        lengths = self._tables.get((tenant, model))
        (_put(self._tables, (tenant, model)) if lengths is None else lengths).observe(tokens)

    def mean(self, tenant: str | None, model: str) -> float:
        """Tokens of an answer, on average."""
        value = float(DEFAULT_OUTPUT_TOKENS)
        for lengths in (self._of_model.get(model), self._tables.get((tenant, model))):
            if lengths is not None:
                value = (lengths.observed * lengths.mean + PRIOR_WEIGHT * value) / (lengths.observed + PRIOR_WEIGHT)
        return value

    def tokens(self, tenant: str | None, model: str, part: float) -> float:
        """The quantile `part` of output tokens: all but this share of responses have more."""
        reported = self._reported.get((tenant, model, part))
        table = self._of_model.get(model) if self._shares else self._tables.get((tenant, model))
        observed = table.observed if table is not None else 0.0
        if reported is None or abs(observed - reported[0]) > STALE * reported[0] + 1:
            if len(self._reported) > 4 * MAX_TABLES:
                self._reported.clear()
            value = self._lean((tenant, model), lambda lengths: lengths.quantile(part), part * DEFAULT_OUTPUT_TOKENS)
            reported = self._reported[tenant, model, part] = observed, value
        return reported[1]

    def _lean(self, key: Key, read: Callable[[LengthHistogram], float], guess: float) -> float:
        value = guess
        for lengths in (self._of_model.get(key[1]), self._tables.get(key)):
            if lengths is not None:
                value = (lengths.observed * read(lengths) + PRIOR_WEIGHT * value) / (lengths.observed + PRIOR_WEIGHT)
        return value


def _put(tables: OrderedDict[K, LengthHistogram], key: K) -> LengthHistogram:
    """Add an empty table."""
    if len(tables) >= MAX_TABLES:
        tables.popitem(last=False)
    lengths = tables[key] = LengthHistogram()
    return lengths
