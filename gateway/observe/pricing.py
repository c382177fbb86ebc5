"""The cost of a request by the prices of `model_list`: for its log line, its usage record and the counters of money.

Each model of a cascade that was called is paid for, also where its answer was discarded. A request that shared the
response of another costs nothing, as it has no usage of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gateway.config.models import ModelEntry
from gateway.pipeline.record import Outcome


class TokenCost(NamedTuple):
    """Money in the operator's currency."""

    input: float = 0.0
    """Of prompt tokens that were not cached."""
    cached_input: float = 0.0
    output: float = 0.0


def token_cost(entry: ModelEntry, input_tokens: int, cached_tokens: int, output_tokens: int) -> TokenCost | None:
    """Return the cost of tokens on a model; `cached_tokens` is a part of `input_tokens`. None without any price."""
    price, output_price = entry.input_cost_per_token, entry.output_cost_per_token
    if price is None and output_price is None:
        return None
    cached_price = entry.cache_read_input_token_cost
    return TokenCost(
        max(0, input_tokens - cached_tokens) * (price or 0.0),
        cached_tokens * ((price or 0.0) if cached_price is None else cached_price),
        output_tokens * (output_price or 0.0),
    )


def cost_of_usage(outcome: Outcome, prices: Mapping[str, ModelEntry]) -> TokenCost | None:
    """Return the cost of a request that is no cascade's; None where no price or no tokens are known."""
    usage = outcome.usage
    if usage is None or (entry := prices.get(outcome.model)) is None:
        return None
    return token_cost(entry, usage.prompt_tokens, usage.cached_tokens or 0, usage.completion_tokens)


def costs_by_model(outcome: Outcome, prices: Mapping[str, ModelEntry]) -> Iterator[tuple[str, TokenCost]]:
    """Yield each priced model that a request is charged for, with its cost."""
    if outcome.cascade is None:
        if (cost := cost_of_usage(outcome, prices)) is not None:
            yield outcome.model, cost
        return
    for step in outcome.cascade.steps:
        if (entry := prices.get(step.model)) is not None and (
            cost := token_cost(entry, step.input_tokens, step.cached_input_tokens, step.output_tokens)
        ) is not None:
            yield step.model, cost


def cost_of(outcome: Outcome, prices: Mapping[str, ModelEntry]) -> float | None:
    """Return the cost of a request, all models together; None where no price or no tokens are known."""
    if not prices:
        return None
    if outcome.cascade is None:
        usage, entry = outcome.usage, prices.get(outcome.model)
        if usage is None or entry is None:
            return None
        cost = token_cost(entry, usage.prompt_tokens, usage.cached_tokens or 0, usage.completion_tokens)
        return None if cost is None else cost[0] + cost[1] + cost[2]
    costs = [sum(each) for _, each in costs_by_model(outcome, prices)]
    return sum(costs) if costs else None
