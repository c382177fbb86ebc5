"""The pages of models: what they cost as the fleet grows, and what a card says where pods differ."""

from __future__ import annotations

import msgspec

from gateway.server.local_endpoints import model_body, models_body
from routing.fleet import Fleet
from routing.pods import ModelCard, Pod, PodState
from tenancy.tenants import Tenant
from tests.attacks.ratios import cost_of

PODS = 4


def a_fleet(adapters: int, pods: int = PODS) -> Fleet:
    fleet = Fleet()
    for number in range(pods):
        names = [f"adapter-{each}" for each in range(adapters)]
        cards = tuple(ModelCard(name, root=name, parent="base", max_model_len=1000 + number) for name in names)
        fleet.put(Pod(f"http://pod-{number}", PodState.READY, frozenset(names), cards=cards))
    return fleet


def test_the_list_of_models_grows_as_the_models_do() -> None:
    """Eight times the adapters take about eight times as long, not sixty-four times; pods alike."""
    few, many, wide = a_fleet(125), a_fleet(1000), a_fleet(125, pods=8 * PODS)
    base = cost_of(lambda: models_body(few, Tenant(), 0, {}), repeats=5)
    assert cost_of(lambda: models_body(many, Tenant(), 0, {}), repeats=5).ratio(base) < 24
    assert cost_of(lambda: models_body(wide, Tenant(), 0, {}), repeats=5).ratio(base) < 24


def test_a_card_is_what_all_pods_of_the_model_can_take() -> None:
    """The shortest length of all, in the list and on the page of its own, and only of pods in the tenant's regions."""
    fleet = a_fleet(3)
    listed = msgspec.json.decode(models_body(fleet, Tenant(), 7, {}))["data"]
    assert [card["id"] for card in listed] == ["adapter-0", "adapter-1", "adapter-2"]
    assert {card["max_model_len"] for card in listed} == {1000}
    assert msgspec.json.decode(model_body(fleet, Tenant(), "adapter-1", 7, {})) == listed[1]
    assert msgspec.json.decode(models_body(fleet, Tenant(regions=frozenset({"eu"})), 7, {}))["data"] == []
