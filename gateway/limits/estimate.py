"""Estimates the usage of a request before it is placed.

Prompt tokens come from bytes per token, with a margin that grows with the error of past estimates. Output tokens come
from `max_tokens` and the tenant's past answers, cached tokens from the prefix index of any engine. The engine's usage
replaces the estimate at the end. What is learned from one tenant is used for that tenant alone. An estimate never
exceeds a limit unless the request certainly does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from math import ceil, inf

from msgspec.structs import replace

from gateway.config.models import ModelEntry
from routing.cost import RunningRatio
from routing.decision.router import Router
from routing.request import GENERATING, Request, Usage
from routing.tokens import DEFAULT_BYTES_PER_TOKEN, TEMPLATE_TOKENS, ExactCounter, PromptTokenEstimate
from tenancy.forecast import OutputLengthForecast
from tenancy.limits.account_usage import AccountUsage
from tenancy.limits.usage import AMOUNT, FREE, LimitKind, RequestUsage, TokenPrices
from tenancy.tenants import Caller

STREAMED, WHOLE = 0.9, 0.99
"""Quantile of answer lengths that is reserved: a stream can extend its reservation, a unary answer cannot."""

FIRST_ERROR, ERRORS, MEMORY = 0.15, 2.0, 200.0
"""The prior of the relative error of prompt estimates, how many times it is added, and its window in observations."""

MAX_BYTES_PER_TOKEN = 16.0
"""No text averages longer tokens: a lower bound for the tokens of a prompt."""

MAX_TOKENS_PER_BYTE = 1.0
"""A token is at least one byte. A higher ratio means that the prompt holds more than its text."""

FULL_WEIGHT_TOKENS = 500.0
"""Tokens of a prompt with weight 1; shorter prompts weigh less, as the chat template dominates them."""

MAX_REMEMBERED = 4_096
"""Pairs of tenant and model that are kept."""

CONTEXT_CACHE_S = 10.0
"""Seconds for which the context lengths of a model are cached."""


Contexts = tuple[int, int] | None


class PromptStatistics:
    """What was learned about the prompts of one tenant and model."""

    __slots__ = ("density", "error")

    def __init__(self) -> None:
        self.density = RunningRatio(MEMORY, total_weight=1.0)
        """Tokens per byte, relative to the default."""
        self.error = RunningRatio(MEMORY, total_weight=1.0)
        """Relative error of estimates, in units of `FIRST_ERROR`."""

    @property
    def margin(self) -> float:
        return 1.0 + ERRORS * FIRST_ERROR * self.error.value


NO_STATISTICS = PromptStatistics()


class UsageEstimator:
    """The estimator of one gateway process; learns from the usage that engines report."""

    def __init__(self, router: Router, lengths: OutputLengthForecast, prices: Mapping[str, ModelEntry]) -> None:
        self._router = router
        self._lengths = lengths
        self._prices = prices
        self._countings: OrderedDict[tuple[str | None, str], PromptStatistics] = OrderedDict()
        self._contexts: dict[str, tuple[float, Contexts]] = {}

    def __call__(self, request: Request, caller: Caller, accounts: Iterable[AccountUsage]) -> RequestUsage:
        """The usage to reserve for a request."""
        limits: list[tuple[LimitKind, float]] = []
        half, counts_cached, rates = inf, False, self.rates(request.model)
        for account in accounts:
            for kind, meter in account.limit_usages.items():
                limits.append((kind, meter.limit))
                if kind is LimitKind.OUTPUT or kind is LimitKind.TOKENS:
                    half = min(half, meter.limit / 2)
                elif kind is LimitKind.UNCACHED or (kind is LimitKind.BUDGET and rates.cached != rates.input):
                    counts_cached = True
        counting = self._countings.get((caller.tenant.name, request.model), NO_STATISTICS)
        counted = self._prompt_tokens(request, counting)
        cached = int(min(counted, self._cached_tokens(request))) if counts_cached else 0
        min_input = int(request.prompt.size / MAX_BYTES_PER_TOKEN)
        min_output, output = self._output_tokens(request, caller)
        expected = RequestUsage(
            1,
            max(ceil(counted * counting.margin), min_input),
            cached,
            max(output, min_output),
            rates,
        )
        if not request.stream and request.max_tokens is not None and expected.output_tokens > half:
            # More than a limit would be rejected for good: reserve half of the limit.
            expected = replace(expected, output_tokens=max(min_output, int(half)))
        return fit_to_limits(expected, RequestUsage(1, min_input, 0, min_output, rates), limits)

    def rates(self, model: str) -> TokenPrices:
        """Prices per token of a model; zero where the configuration has none."""
        entry = self._prices.get(model)
        if entry is None:
            return FREE
        price = entry.input_cost_per_token or 0.0
        cached = entry.cache_read_input_token_cost
        return TokenPrices(price, price if cached is None else cached, entry.output_cost_per_token or 0.0)

    def contexts(self, model: str, now_s: float) -> Contexts:
        """The shortest and longest `max_model_len` among pods of a model; None where no pod reports one."""
        seen_s, found = self._contexts.get(model, (-CONTEXT_CACHE_S, None))
        if now_s >= seen_s + CONTEXT_CACHE_S:
            pods = [pod for pod in self._router.fleet.pods if model in pod.models]
            lengths = [card.max_model_len for pod in pods for card in pod.cards if card.name == model]
            known = [length for length in lengths if length]
            found = (min(known), max(known)) if known else None
            if len(self._contexts) >= MAX_REMEMBERED:
                self._contexts.clear()
            self._contexts[model] = now_s, found
        return found

    def learn(self, request: Request, tenant: str | None, usage: Usage) -> None:
        """Learn from the usage that an engine reports."""
        if request.api in GENERATING:
            self._lengths.observe(tenant, request.model, usage.completion_tokens // request.sequences)
        size = request.prompt.size + request.unseen_bytes
        if not size or not usage.prompt_tokens:
            return
        counting = self._countings.get((tenant, request.model))
        counted = self._prompt_tokens(request, counting or NO_STATISTICS)
        if counting is None:
            if len(self._countings) >= MAX_REMEMBERED:
                self._countings.popitem(last=False)
            counting = self._countings[tenant, request.model] = PromptStatistics()
        counting.error.observe(abs(usage.prompt_tokens / counted - 1.0) / FIRST_ERROR)
        usual = size / DEFAULT_BYTES_PER_TOKEN
        tokens = max(1.0, usage.prompt_tokens - TEMPLATE_TOKENS)
        counting.density.observe(
            min(tokens / usual, DEFAULT_BYTES_PER_TOKEN * MAX_TOKENS_PER_BYTE), usual / FULL_WEIGHT_TOKENS
        )

    def _prompt_tokens(self, request: Request, counting: PromptStatistics) -> float:
        """Estimate prompt tokens: known turns as counted before, the rest by the tenant's bytes per token."""
        prompt, counter = request.prompt, self._router.counters[request.model]
        if isinstance(counter, ExactCounter):
            return counter.tokens(prompt.size)
        per_byte = counting.density.value / DEFAULT_BYTES_PER_TOKEN
        leaf, unseen = counter.known_leaf(prompt), request.unseen_bytes * per_byte
        if leaf is not None:
            return unseen + leaf.tokens + (prompt.size - leaf.size) * per_byte
        return unseen + (TEMPLATE_TOKENS + prompt.size * per_byte if prompt.size else 0.0)

    def _cached_tokens(self, request: Request) -> float:
        mask = self._router.fleet.eligible(request.model).mask
        walked = list(self._router.index.match(request.prompt, mask))
        return (
            PromptTokenEstimate(self._router.counters[request.model], request.prompt).tokens(walked[-1][1])
            if walked
            else 0.0
        )

    def _output_tokens(self, request: Request, caller: Caller) -> tuple[int, int]:
        """Tokens of output that a request certainly uses, and those that it is expected to use."""
        if request.api not in GENERATING:
            return 0, 0
        limit, minimum = request.max_tokens, request.min_tokens
        if limit is not None and limit < minimum:
            minimum = limit
        if not request.stream and limit is not None:
            each = max(1, limit)
        else:
            part = STREAMED if request.stream else WHOLE
            expected = ceil(self._lengths.tokens(caller.tenant.name, request.model, part))
            each = max(1, expected if limit is None else min(limit, expected))
        return (minimum or 1) * request.sequences, each * request.sequences


Limits = Iterable[tuple[LimitKind, float]]


def fit_to_limits(expected: RequestUsage, minimum: RequestUsage, limits: Limits) -> RequestUsage:
    """Return what to reserve: `expected`, cut to what `limits` have in all, and at least `minimum`.

    So an expectation alone never makes a request too large for a limit. What a stream needs beyond it is topped up
    while it runs.
    """
    limits = tuple(limits)
    for kind, limit in limits:
        if AMOUNT[kind](expected) > limit:
            break
    else:
        return expected
    room = min([_max_input(kind, limit, expected, minimum) for kind, limit in limits], default=inf)
    input_tokens = expected.input_tokens
    if input_tokens > room:
        input_tokens = max(minimum.input_tokens, int(room))
    cut = replace(expected, input_tokens=input_tokens, cached_tokens=min(expected.cached_tokens, input_tokens))
    room = max_output(cut, limits)
    if cut.output_tokens > room:
        cut = replace(cut, output_tokens=max(minimum.output_tokens, int(room)))
    return cut


def max_output(use: RequestUsage, limits: Limits) -> float:
    """Return how many tokens of output there is room for beside the input of `use`; infinite where none is limited."""
    rooms = [inf]
    for kind, limit in limits:
        if kind is LimitKind.OUTPUT:
            rooms.append(limit)
        elif kind is LimitKind.TOKENS:
            rooms.append(limit - use.input_tokens)
        elif kind is LimitKind.BUDGET and use.rates.output:
            rooms.append((limit - replace(use, output_tokens=0).cost) / use.rates.output)
    return max(0.0, min(rooms))


def _max_input(kind: LimitKind, limit: float, expected: RequestUsage, minimum: RequestUsage) -> float:
    if kind is LimitKind.INPUT:
        return limit
    if kind is LimitKind.TOKENS:
        return limit - minimum.output_tokens
    if kind is LimitKind.UNCACHED:
        return limit + expected.cached_tokens
    rates = expected.rates
    if kind is not LimitKind.BUDGET or not rates.input:
        return inf
    room, cached = limit - minimum.output_tokens * rates.output, expected.cached_tokens
    if room < cached * rates.cached:
        return room / rates.cached
    return cached + (room - cached * rates.cached) / rates.input
