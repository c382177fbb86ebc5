"""Pages that every key may ask for: what they cost beside a plain request, however large the fleet is."""

from __future__ import annotations

from gateway.server.local_endpoints import models_body
from tenancy.tenants import Tenant
from tests.attacks.ratios import cost_of, plain_reading
from tests.gateway.server.test_local_endpoints import a_fleet

ADAPTERS = 2000

MOST_PLAIN_READINGS = 1.5
"""For each model that is listed, with the cards of four pods."""


def test_the_list_of_eight_thousand_cards_costs_what_its_bytes_cost() -> None:
    """Two thousand adapters on four pods: the page costs at most so much for each that is listed."""
    plain, fleet = plain_reading(), a_fleet(ADAPTERS)
    cost = cost_of(lambda: models_body(fleet, Tenant(), 0, {}))
    assert cost.ratio(plain) < MOST_PLAIN_READINGS * ADAPTERS, (cost, plain)
