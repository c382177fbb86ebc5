"""How long answers will be, learned."""

from __future__ import annotations

from random import Random

import pytest

from routing.request import DEFAULT_OUTPUT_TOKENS
from tenancy.forecast import MAX_TABLES, OutputLengthForecast


def test_before_anything_is_observed_little_is_counted_on() -> None:
    """The mean is the usual one, the least likely length next to nothing."""
    forecast = OutputLengthForecast()
    assert forecast.mean("a", "m") == DEFAULT_OUTPUT_TOKENS
    assert forecast.tokens("a", "m", 0.01) < 10


def test_quantiles_come_near_what_was_observed() -> None:
    """Within a bucket's width, after some hundred answers."""
    forecast, draws = OutputLengthForecast(), Random(1)
    lengths = sorted(round(draws.lognormvariate(5.0, 0.7)) for _ in range(900))
    for tokens in lengths:
        forecast.observe("a", "m", tokens)
    for part in (0.1, 0.5, 0.9):
        assert forecast.tokens("a", "m", part) == pytest.approx(lengths[int(900 * part)], rel=0.25)
    assert forecast.mean("a", "m") == pytest.approx(sum(lengths) / 900, rel=0.1)


def test_a_tenant_of_its_own_kind_is_distinguished_from_the_others() -> None:
    """A newcomer is taken to be like all, until it shows otherwise."""
    forecast = OutputLengthForecast()
    for _ in range(500):
        forecast.observe("long", "m", 800)
    newcomer = forecast.tokens("short", "m", 0.5)
    assert newcomer > 400
    for _ in range(500):
        forecast.observe("short", "m", 20)
    assert forecast.tokens("short", "m", 0.5) < 100
    assert forecast.tokens("long", "m", 0.5) > 500


def test_it_forgets() -> None:
    """When a model's answers become shorter, so do those foretold."""
    forecast = OutputLengthForecast()
    for _ in range(2_000):
        forecast.observe("a", "m", 1_000)
    for _ in range(5_000):
        forecast.observe("a", "m", 50)
    assert forecast.tokens("a", "m", 0.5) < 60


def test_memory_is_bounded() -> None:
    """However many tenants and models come by."""
    forecast = OutputLengthForecast()
    for number in range(MAX_TABLES + 100):
        forecast.observe(str(number), "m", 10)
    assert len(forecast._tables) == MAX_TABLES


def test_what_is_not_shared_is_each_tenants_own() -> None:
    """Whatever others show, a newcomer is expected to be as usual, and learns from itself."""
    forecast = OutputLengthForecast(shares=False)
    before = forecast.tokens("short", "m", 0.9)
    for _ in range(500):
        forecast.observe("long", "m", 20_000)
    assert forecast.tokens("short", "m", 0.9) == before
    for _ in range(500):
        forecast.observe("short", "m", 20)
    assert forecast.tokens("short", "m", 0.9) < 50
