"""What a request is expected to take, before anybody has counted it.

Prompts by the counter that routing learns, a little more than that while it errs; answers by what the client asks for
and what answers of its tenant have been; warmth by whatever any engine holds. All of it is put right when the engine
has told what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Protocol

from gateway.config.models import ModelEntry
from routing.learning import Usage
from routing.ratio import Ratio
from routing.request import Request
from routing.router import Router
from routing.tokens import Ruler
from tenancy.limits.book import Book
from tenancy.limits.use import FREE, Kind, Rates, Use
from tenancy.tenants import Caller

STREAMED, WHOLE = 0.9, 0.99
"""The quantile of answers that is taken: a stream can be topped up, an answer in one piece cannot."""

FIRST_ERROR, ERRORS, MEMORY = 0.15, 2.0, 200.0
"""How far prompts were counted wrong is learned, and so many times that is added."""


class Lengths(Protocol):
    """How long answers of a tenant and model have been."""

    def observe(self, tenant: str | None, model: str, tokens: int) -> None: ...
    def tokens(self, tenant: str | None, model: str, part: float) -> float:
        """So long or shorter is this part of them."""
        ...


class Expecting:
    """One per gateway process."""

    def __init__(self, router: Router, lengths: Lengths, prices: Mapping[str, ModelEntry]) -> None:
        self._router = router
        self._lengths = lengths
        self._prices = prices
        self._errors: dict[str, Ratio] = {}

    def __call__(self, request: Request, caller: Caller, books: Iterable[Book]) -> Use:
        """What a request is expected to take."""
        rates, kinds = self.rates(request.model), {kind for book in books for kind in book.meters}
        ruler = Ruler(self._router.counter(request.model), request.prompt)
        counted = ruler.tokens(request.prompt.size)
        counts_warmth = Kind.UNCACHED in kinds or (Kind.BUDGET in kinds and rates.cached != rates.input)
        return Use(
            input_tokens=ceil(counted * self._margin(request.model)),
            cached_tokens=int(min(counted, self._warm_tokens(request, ruler))) if counts_warmth else 0,
            output_tokens=self._output_tokens(request, caller, books),
            rates=rates,
        )

    def rates(self, model: str) -> Rates:
        """What a model's tokens cost; nothing where that is not known."""
        entry = self._prices.get(model)
        if entry is None:
            return FREE
        price = entry.input_cost_per_token or 0.0
        cached = entry.cache_read_input_token_cost
        return Rates(price, price if cached is None else cached, entry.output_cost_per_token or 0.0)

    def learn(self, request: Request, tenant: str | None, usage: Usage) -> None:
        """An engine has counted a prompt and its answer."""
        if request.api.generates:
            self._lengths.observe(tenant, request.model, usage.completion_tokens // request.sequences)
        counted = self._router.counter(request.model).tokens(request.prompt.size)
        if counted and usage.prompt_tokens:
            error = abs(usage.prompt_tokens / counted - 1.0)
            self._error(request.model).observe(error / FIRST_ERROR)

    def _error(self, model: str) -> Ratio:
        return self._errors.setdefault(model, Ratio(MEMORY, seen=1.0))

    def _margin(self, model: str) -> float:
        known = self._errors.get(model)
        return 1.0 + ERRORS * FIRST_ERROR * (known.value if known is not None else 1.0)

    def _warm_tokens(self, request: Request, ruler: Ruler) -> float:
        mask = self._router.fleet.roster(request.model).mask
        walked = list(self._router.index.walk(request.prompt, mask))
        return ruler.tokens(walked[-1][1]) if walked else 0.0

    def _output_tokens(self, request: Request, caller: Caller, books: Iterable[Book]) -> int:
        if not request.api.generates:
            return 0
        most = request.max_tokens
        if not request.stream and most is not None:
            return self._within(most * request.sequences, books)
        part = STREAMED if request.stream else WHOLE
        expected = ceil(self._lengths.tokens(caller.tenant.name, request.model, part))
        return max(1, expected if most is None else min(most, expected)) * request.sequences

    @staticmethod
    def _within(most: int, books: Iterable[Book]) -> int:
        """A client that allows itself more than a limit would be refused for good: half of the limit will do."""
        limits = [m.limit for book in books for m in book.meters.values() if m.kind in (Kind.TOKENS, Kind.OUTPUT)]
        return max(1, int(min([most, *(limit / 2 for limit in limits)])))
