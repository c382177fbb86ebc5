"""What a request costs by the prices of `model_list`, whatever became of it."""

import pytest

from cascade.record import CascadeResult, CascadeStep
from gateway.config.models import ModelEntry
from gateway.observe.pricing import TokenCost, cost_of, costs_by_model
from routing.request import Usage
from tests.gateway.samples import an_outcome

PRICES = {"tiny": ModelEntry("tiny", 2.0, 10.0, 1.0), "big": ModelEntry("big", 4.0, 20.0), "free": ModelEntry("free")}


def test_cached_input_is_priced_apart() -> None:
    """A model without a price for it charges it as all input."""
    assert list(costs_by_model(an_outcome(), PRICES)) == [("tiny", TokenCost(8.0, 96.0, 110.0))]
    assert list(costs_by_model(an_outcome(), {"tiny": PRICES["big"]})) == [("tiny", TokenCost(16.0, 384.0, 220.0))]


def test_each_model_of_a_cascade_is_paid_for() -> None:
    """Also the one whose answer was discarded."""
    steps = (
        CascadeStep("tiny", "escalated", input_tokens=100, cached_input_tokens=50, output_tokens=10),
        CascadeStep("big", "unjudged", input_tokens=100, output_tokens=5),
        CascadeStep("unknown", "failed"),
    )
    outcome = an_outcome(cascade=CascadeResult("auto", "all", "tiny", steps))
    assert [model for model, _ in costs_by_model(outcome, PRICES)] == ["tiny", "big"]
    assert cost_of(outcome, PRICES) == pytest.approx(100 + 50 + 100 + 400 + 100)


@pytest.mark.parametrize("changes", [{"usage": None, "coalesced_with": "r-0"}, {"usage": None}])
def test_a_request_without_tokens_costs_nothing(changes: dict[str, object]) -> None:
    """One that shared another's response, and one that was rejected."""
    assert cost_of(an_outcome(**changes), PRICES) is None


def test_an_unpriced_model_has_no_cost() -> None:
    """None, not zero: it is unknown."""
    assert cost_of(an_outcome(usage=Usage(5, 5)), {"tiny": PRICES["free"]}) is None
