"""What a request is expected to take, before anybody has counted it.

Prompts by bytes per token, a little more than that while the count errs; answers by what the client asks for and what
answers of its tenant have been; warmth by whatever any engine holds. All of it is put right when the engine has told
what it was. What is learned of one tenant's requests is used for that tenant alone, and no expectation is larger than
the limits: only what a request needs for certain can make it too large for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from math import ceil, inf
from typing import Protocol

from msgspec.structs import replace

from gateway.config.models import ModelEntry
from routing.cost import Ratio
from routing.decision.router import Router
from routing.request import Request, Usage
from routing.tokens import TEMPLATE_TOKENS, USUAL_BYTES_PER_TOKEN, ExactCounter, Ruler
from tenancy.limits.account_usage import Book
from tenancy.limits.usage import FREE, Kind, Rates, Use, fitted
from tenancy.tenants import Caller

STREAMED, WHOLE = 0.9, 0.99
"""The quantile of answers that is taken: a stream can be topped up, an answer in one piece cannot."""

FIRST_ERROR, ERRORS, MEMORY = 0.15, 2.0, 200.0
"""How far prompts were counted wrong is learned, and so many times that is added."""

LEAST_BYTES_PER_TOKEN = 16.0
"""No text is known whose tokens are longer on average: so many bytes are one token for certain."""

MOST_TOKENS_PER_BYTE = 1.0
"""A token is at least a byte. More tells of something in the prompt that its text does not show."""

LONG = 500.0
"""Tokens of a prompt that counts as one observation: a shorter one says more of the template than of the text."""

REMEMBERED = 4_096
"""Tenants and models whose prompts are known."""

KNOWN_FOR_S = 10.0
"""How long pods are taken to have the context that they were seen with."""


Contexts = tuple[int, int] | None


class Lengths(Protocol):
    """How long answers of a tenant and model have been."""

    def observe(self, tenant: str | None, model: str, tokens: int) -> None: ...
    def tokens(self, tenant: str | None, model: str, part: float) -> float:
        """So long or shorter is this part of them."""
        ...


class Counting:
    """How prompts of one tenant and model are counted."""

    __slots__ = ("density", "error")

    def __init__(self) -> None:
        self.density = Ratio(MEMORY, seen=1.0)
        """Tokens to a byte, in units of the usual."""
        self.error = Ratio(MEMORY, seen=1.0)
        """In units of `FIRST_ERROR`."""

    @property
    def margin(self) -> float:
        return 1.0 + ERRORS * FIRST_ERROR * self.error.value


NEW = Counting()


class Expecting:
    """One per gateway process."""

    def __init__(self, router: Router, lengths: Lengths, prices: Mapping[str, ModelEntry]) -> None:
        self._router = router
        self._lengths = lengths
        self._prices = prices
        self._countings: OrderedDict[tuple[str | None, str], Counting] = OrderedDict()
        self._contexts: dict[str, tuple[float, Contexts]] = {}

    def __call__(self, request: Request, caller: Caller, books: Iterable[Book]) -> Use:
        """What to reserve for a request."""
        limits: list[tuple[Kind, float]] = []
        half, counts_warmth, rates = inf, False, self.rates(request.model)
        for book in books:
            for kind, meter in book.meters.items():
                limits.append((kind, meter.limit))
                if kind is Kind.OUTPUT or kind is Kind.TOKENS:
                    half = min(half, meter.limit / 2)
                elif kind is Kind.UNCACHED or (kind is Kind.BUDGET and rates.cached != rates.input):
                    counts_warmth = True
        counting = self._countings.get((caller.tenant.name, request.model), NEW)
        counted = self._prompt_tokens(request, counting)
        cached = int(min(counted, self._warm_tokens(request))) if counts_warmth else 0
        least_input, least_output = self._least(request)
        expected = Use(
            1,
            max(ceil(counted * counting.margin), least_input),
            cached,
            max(self._output_tokens(request, caller), least_output),
            rates,
        )
        if not request.stream and request.max_tokens is not None and expected.output_tokens > half:
            # All that it may take would be refused for good where it is more than a limit: half of the limit will do.
            expected = replace(expected, output_tokens=max(least_output, int(half)))
        return fitted(expected, Use(1, least_input, 0, least_output, rates), limits)

    @staticmethod
    def _least(request: Request) -> tuple[int, int]:
        """Tokens of input and output that a request takes for certain: only they make it too large for a limit."""
        each = request.min_tokens
        if request.max_tokens is not None and request.max_tokens < each:
            each = request.max_tokens
        output = (each or 1) * request.sequences if request.api.generates else 0
        return int(request.prompt.size / LEAST_BYTES_PER_TOKEN), output

    def rates(self, model: str) -> Rates:
        """What a model's tokens cost; nothing where that is not known."""
        entry = self._prices.get(model)
        if entry is None:
            return FREE
        price = entry.input_cost_per_token or 0.0
        cached = entry.cache_read_input_token_cost
        return Rates(price, price if cached is None else cached, entry.output_cost_per_token or 0.0)

    def contexts(self, model: str, now_s: float) -> Contexts:
        """The shortest and the longest context that pods of a model have; None where none has said so."""
        seen_s, found = self._contexts.get(model, (-KNOWN_FOR_S, None))
        if now_s >= seen_s + KNOWN_FOR_S:
            pods = [pod for pod in self._router.fleet.pods if model in pod.models]
            lengths = [card.max_model_len for pod in pods for card in pod.cards if card.name == model]
            told = [length for length in lengths if length]
            found = (min(told), max(told)) if told else None
            if len(self._contexts) >= REMEMBERED:
                self._contexts.clear()
            self._contexts[model] = now_s, found
        return found

    def learn(self, request: Request, tenant: str | None, usage: Usage) -> None:
        """An engine has counted a prompt and its answer."""
        if request.api.generates:
            self._lengths.observe(tenant, request.model, usage.completion_tokens // request.sequences)
        size = request.prompt.size + request.unseen_bytes
        if not size or not usage.prompt_tokens:
            return
        counting = self._countings.get((tenant, request.model))
        counted = self._prompt_tokens(request, counting or NEW)
        if counting is None:
            if len(self._countings) >= REMEMBERED:
                self._countings.popitem(last=False)
            counting = self._countings[tenant, request.model] = Counting()
        counting.error.observe(abs(usage.prompt_tokens / counted - 1.0) / FIRST_ERROR)
        usual = size / USUAL_BYTES_PER_TOKEN
        tokens = max(1.0, usage.prompt_tokens - TEMPLATE_TOKENS)
        counting.density.observe(min(tokens / usual, USUAL_BYTES_PER_TOKEN * MOST_TOKENS_PER_BYTE), usual / LONG)

    def _prompt_tokens(self, request: Request, counting: Counting) -> float:
        """By what is known of earlier turns of the same prompt, and beyond them by the tenant's own bytes per token."""
        prompt, counter = request.prompt, self._router.counter(request.model)
        if isinstance(counter, ExactCounter):
            return counter.tokens(prompt.size)
        per_byte = counting.density.value / USUAL_BYTES_PER_TOKEN
        leaf, unseen = counter.known_leaf(prompt), request.unseen_bytes * per_byte
        if leaf is not None:
            return unseen + leaf.tokens + (prompt.size - leaf.size) * per_byte
        return unseen + (TEMPLATE_TOKENS + prompt.size * per_byte if prompt.size else 0.0)

    def _warm_tokens(self, request: Request) -> float:
        mask = self._router.fleet.roster(request.model).mask
        walked = list(self._router.index.walk(request.prompt, mask))
        return Ruler(self._router.counter(request.model), request.prompt).tokens(walked[-1][1]) if walked else 0.0

    def _output_tokens(self, request: Request, caller: Caller) -> int:
        if not request.api.generates:
            return 0
        most = request.max_tokens
        if not request.stream and most is not None:
            return max(1, most) * request.sequences
        part = STREAMED if request.stream else WHOLE
        expected = ceil(self._lengths.tokens(caller.tenant.name, request.model, part))
        return max(1, expected if most is None else min(most, expected)) * request.sequences
