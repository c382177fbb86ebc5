"""The pages of models: what they cost as the fleet grows, and what a card says where pods differ."""

from __future__ import annotations

import msgspec
import pytest

from gateway.server.local_endpoints import model_body, models_body
from routing.fleet import Fleet
from routing.pods import ModelCard, Pod, PodState
from routing.rejection import RequestRejected
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


def ids_of(body: bytes) -> list[str]:
    return [card["id"] for card in msgspec.json.decode(body)["data"]]


def test_a_rewritten_name_is_listed_where_a_target_is_served() -> None:
    """With the card of that target, also by an alias; not where the tenant may use no target, or none is served."""
    fleet = a_fleet(2)
    targets = {"chat": ("away", "adapter-1"), "nowhere": ("away",), "adapter-0": ("adapter-1",)}
    tenant = Tenant(aliases={"gpt": "chat"})
    body = models_body(fleet, tenant, 7, {}, targets)
    assert ids_of(body) == ["adapter-0", "adapter-1", "chat", "gpt"]
    card = msgspec.json.decode(body)["data"][2]
    assert card["root"] == "adapter-1"
    assert msgspec.json.decode(model_body(fleet, tenant, "chat", 7, {}, targets)) == card
    assert msgspec.json.decode(model_body(fleet, tenant, "gpt", 7, {}, targets)) == card | {"id": "gpt"}
    narrow = Tenant(models=frozenset({"adapter-0"}))
    assert ids_of(models_body(fleet, narrow, 7, {}, targets)) == ["adapter-0"]
    for name in ("chat", "nowhere"):
        with pytest.raises(RequestRejected):
            model_body(fleet, narrow, name, 7, {}, targets)
