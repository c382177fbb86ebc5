"""Pods and engines: who exists, who may be chosen, and which slot is whose."""

from dataclasses import replace

import pytest

from routing.fleet import Fleet
from routing.pods import EngineShape, Pod, Standing


def pod(url: str, *models: str, standing: Standing = Standing.READY, adapters: frozenset[str] = frozenset()) -> Pod:
    return Pod(url, standing, models=frozenset(models), adapters=adapters, ready_since_s=float(len(url)))


def fleet_of(*pods: Pod, ranks: int = 1) -> Fleet:
    fleet = Fleet()
    for each in pods:
        fleet.put(each)
        fleet.reshape(each.url, shapes(ranks))
    return fleet


def shapes(ranks: int, kv_tokens: int | None = 1000) -> list[EngineShape]:
    return [EngineShape(None if ranks == 1 else rank, kv_tokens=kv_tokens) for rank in range(ranks)]


def names(fleet: Fleet, model: str) -> list[str]:
    return [engine.name for engine in fleet.roster(model).engines]


@pytest.mark.parametrize("standing", list(Standing))
def test_only_ready_pods_are_chosen(standing: Standing) -> None:
    """Starting, unready, broken and draining pods are known, but serve nobody; nor do doubted ones beside them."""
    fleet = fleet_of(pod("http://a", "m"), pod("http://b", "m", standing=standing))
    assert ("http://b" in names(fleet, "m")) == (standing is Standing.READY)
    assert fleet.knows("m")


def test_doubted_pods_have_a_roster_of_their_own() -> None:
    """Of those that serve the model, in the regions asked for."""
    doubted = pod("http://a", "m", standing=Standing.DOUBTED)
    fleet = fleet_of(doubted, pod("http://b", "m"), pod("http://c", "other", standing=Standing.DOUBTED))
    assert [engine.name for engine in fleet.doubted_roster("m").engines] == ["http://a"]
    assert not fleet.doubted_roster("m", frozenset({"elsewhere"})).engines
    assert names(fleet, "m") == ["http://b"]


def test_a_roster_is_of_those_that_serve_the_model() -> None:
    """Each model has its own pods; adapters are models; an unknown model has none."""
    fleet = fleet_of(
        pod("http://a", "m"), pod("http://b", "m", "lora", adapters=frozenset({"lora"})), pod("http://c", "other")
    )
    assert names(fleet, "m") == ["http://a", "http://b"]
    assert names(fleet, "lora") == ["http://b"]
    assert fleet.roster("lora").is_adapter
    assert not fleet.roster("m").is_adapter
    assert names(fleet, "nope") == []
    assert not fleet.knows("nope")
    assert {model: len(pods) for model, pods in fleet.models().items()} == {"m": 2, "lora": 1, "other": 1}


def test_changes_show_at_once() -> None:
    """No decision sees a roster from before a change."""
    fleet = fleet_of(pod("http://a", "m"), pod("http://b", "m"))
    assert len(names(fleet, "m")) == 2
    known = fleet.pod("http://a")
    assert known
    fleet.put(replace(known, standing=Standing.BROKEN))
    assert names(fleet, "m") == ["http://b"]
    fleet.put(replace(known, models=frozenset({"m", "n"})))
    assert names(fleet, "m") == ["http://a", "http://b"]
    assert names(fleet, "n") == ["http://a"]
    fleet.remove("http://b")
    assert names(fleet, "m") == ["http://a"]
    fleet.reshape("http://a", shapes(2))
    assert names(fleet, "m") == ["http://a#0", "http://a#1"]


def test_clients_cannot_fill_memory_with_models() -> None:
    """Rosters are kept for models that exist only."""
    fleet = fleet_of(pod("http://a", "m"))
    for number in range(100):
        fleet.roster(f"invented-{number}")
    fleet.roster("m")
    assert set(fleet._rosters) == {("m", None)}


def test_engines_keep_their_slots() -> None:
    """A rank that is still there keeps its slot when its pod says more of it, or gains and loses others."""
    fleet = fleet_of(pod("http://a", "m"), ranks=3)
    before = {engine.rank: engine.slot for engine in fleet.roster("m").engines}
    freed = fleet.reshape("http://a", [EngineShape(2, kv_tokens=5), EngineShape(0), EngineShape(3)])
    after = {engine.rank: engine.slot for engine in fleet.roster("m").engines}
    assert freed == (before[1],)
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[3] not in before.values()
    assert fleet.roster("m").engines[0].kv_tokens == 5


def test_slots_are_given_out_again_only_when_recycled() -> None:
    """A freed slot may still be charged: it waits until the caller says that nothing is left."""
    fleet = fleet_of(pod("http://a", "m"), pod("http://b", "m"))
    (slot,) = fleet.remove("http://a")
    fleet.put(pod("http://c", "m"))
    fleet.reshape("http://c", shapes(1))
    assert fleet.roster("m").slots == (1, 2)
    fleet.recycle(slot)
    fleet.put(pod("http://d", "m"))
    fleet.reshape("http://d", shapes(1))
    assert sorted(fleet.roster("m").slots) == [0, 1, 2]
    assert fleet.slot_count == 3


def test_removing_who_is_not_there_frees_nothing() -> None:
    """Discovery may say it twice."""
    fleet = fleet_of(pod("http://a", "m"))
    assert fleet.remove("http://a") == (0,)
    assert fleet.remove("http://a") == ()
    assert fleet.pods == ()


def test_who_is_ready_shows() -> None:
    """For logs."""
    fleet = fleet_of(pod("http://a", "m"), pod("http://b", "m", standing=Standing.BROKEN))
    assert repr(fleet) == "<Fleet 1 of 2 pods ready>"


def test_regions_narrow_every_roster() -> None:
    """Who may be computed in some regions only sees no pod elsewhere, nor one of which nobody knows where it stands."""
    placed = {"http://a": "eu", "http://b": "us", "http://c": None}
    fleet = fleet_of(*(replace(pod(url, "m"), region=region) for url, region in placed.items()))
    eu, nowhere = frozenset({"eu"}), frozenset({"mars"})
    assert [engine.pod for engine in fleet.roster("m", eu).engines] == ["http://a"]
    assert len(fleet.roster("m").engines) == 3
    assert fleet.roster("m", frozenset()).engines == fleet.roster("m", nowhere).engines == ()
    assert (fleet.knows("m", eu), fleet.knows("m", nowhere)) == (True, False)
    assert set(fleet.models(eu)) == {"m"}
    assert not fleet.models(nowhere)
    known = fleet.pod("http://b")
    assert known
    fleet.put(replace(known, region="eu"))
    assert [engine.pod for engine in fleet.roster("m", eu).engines] == ["http://a", "http://b"]
