"""Pods and engines: who exists, who may be chosen, and which slot is whose."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from routing.eligible import PairingFallback
from routing.facts import PodFacts, Role
from routing.fleet import Fleet, eligible_for
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import Reason, RequestRejected
from tests.routing.engines import MODEL, ask, place, router_of, serve


def pod(url: str, *models: str, standing: PodState = PodState.READY, adapters: frozenset[str] = frozenset()) -> Pod:
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
    return [engine.name for engine in fleet.eligible(model).engines]


@pytest.mark.parametrize("standing", list(PodState))
def test_only_ready_pods_are_chosen(standing: PodState) -> None:
    """Starting, unready, broken and draining pods are known, but serve nobody; nor do doubted ones beside them."""
    fleet = fleet_of(pod("http://a", "m"), pod("http://b", "m", standing=standing))
    assert ("http://b" in names(fleet, "m")) == (standing is PodState.READY)
    assert fleet.knows("m")


def test_doubted_pods_have_an_eligible_set_of_their_own() -> None:
    """Of those that serve the model, in the regions asked for."""
    doubted = pod("http://a", "m", standing=PodState.SUSPECT)
    fleet = fleet_of(doubted, pod("http://b", "m"), pod("http://c", "other", standing=PodState.SUSPECT))
    assert [engine.name for engine in fleet.eligible_failing("m").engines] == ["http://a"]
    assert not fleet.eligible_failing("m", frozenset({"elsewhere"})).engines
    assert names(fleet, "m") == ["http://b"]


def test_an_eligible_set_is_of_those_that_serve_the_model() -> None:
    """Each model has its own pods; adapters are models; an unknown model has none."""
    fleet = fleet_of(
        pod("http://a", "m"), pod("http://b", "m", "lora", adapters=frozenset({"lora"})), pod("http://c", "other")
    )
    assert names(fleet, "m") == ["http://a", "http://b"]
    assert names(fleet, "lora") == ["http://b"]
    assert fleet.eligible("lora").is_adapter
    assert not fleet.eligible("m").is_adapter
    assert names(fleet, "nope") == []
    assert not fleet.knows("nope")
    assert {model: len(pods) for model, pods in fleet.models().items()} == {"m": 2, "lora": 1, "other": 1}


def test_changes_show_at_once() -> None:
    """No decision sees a roster from before a change."""
    fleet = fleet_of(pod("http://a", "m"), pod("http://b", "m"))
    assert len(names(fleet, "m")) == 2
    known = fleet.pod("http://a")
    assert known
    fleet.put(replace(known, state=PodState.OPEN_CIRCUIT))
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
        fleet.eligible(f"invented-{number}")
    fleet.eligible("m")
    assert set(fleet._rosters) == {("m", None)}


def test_engines_keep_their_slots() -> None:
    """A rank that is still there keeps its slot when its pod says more of it, or gains and loses others."""
    fleet = fleet_of(pod("http://a", "m"), ranks=3)
    before = {engine.rank: engine.slot for engine in fleet.eligible("m").engines}
    freed = fleet.reshape("http://a", [EngineShape(2, kv_tokens=5), EngineShape(0), EngineShape(3)])
    after = {engine.rank: engine.slot for engine in fleet.eligible("m").engines}
    assert freed == (before[1],)
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[3] not in before.values()
    assert fleet.eligible("m").engines[0].kv_tokens == 5


def test_slots_are_given_out_again_only_when_recycled() -> None:
    """A freed slot may still be charged: it waits until the caller says that nothing is left."""
    fleet = fleet_of(pod("http://a", "m"), pod("http://b", "m"))
    (slot,) = fleet.remove("http://a")
    fleet.put(pod("http://c", "m"))
    fleet.reshape("http://c", shapes(1))
    assert fleet.eligible("m").slots == (1, 2)
    fleet.recycle(slot)
    fleet.put(pod("http://d", "m"))
    fleet.reshape("http://d", shapes(1))
    assert sorted(fleet.eligible("m").slots) == [0, 1, 2]
    assert fleet.slot_count == 3


def test_removing_who_is_not_there_frees_nothing() -> None:
    """Discovery may say it twice."""
    fleet = fleet_of(pod("http://a", "m"))
    assert fleet.remove("http://a") == (0,)
    assert fleet.remove("http://a") == ()
    assert fleet.pods == ()


def test_who_is_ready_shows() -> None:
    """For logs."""
    fleet = fleet_of(pod("http://a", "m"), pod("http://b", "m", standing=PodState.OPEN_CIRCUIT))
    assert repr(fleet) == "<Fleet 1 of 2 pods ready>"


def test_regions_narrow_every_eligible_set() -> None:
    """Who may be computed in some regions only sees no pod elsewhere, nor one of which nobody knows where it stands."""
    placed = {"http://a": "eu", "http://b": "us", "http://c": None}
    fleet = fleet_of(*(replace(pod(url, "m"), region=region) for url, region in placed.items()))
    eu, nowhere = frozenset({"eu"}), frozenset({"mars"})
    assert [engine.pod for engine in fleet.eligible("m", eu).engines] == ["http://a"]
    assert len(fleet.eligible("m").engines) == 3
    assert fleet.eligible("m", frozenset()).engines == fleet.eligible("m", nowhere).engines == ()
    assert (fleet.knows("m", eu), fleet.knows("m", nowhere)) == (True, False)
    assert set(fleet.models(eu)) == {"m"}
    assert not fleet.models(nowhere)
    known = fleet.pod("http://b")
    assert known
    fleet.put(replace(known, region="eu"))
    assert [engine.pod for engine in fleet.eligible("m", eu).engines] == ["http://a", "http://b"]


def single_engine_fleet(*pods: Pod, roles: Sequence[Role] = ()) -> Fleet:
    """Pods of one engine each, that may do what `roles` says, or everything."""
    fleet = Fleet()
    for at, pod in enumerate(pods):
        fleet.put(pod)
        fleet.reshape(pod.url, [EngineShape(role=roles[at] if roles else Role.EITHER)])
    return fleet


def eligible_pod(name: str, standing: PodState = PodState.READY, **stated: Any) -> Pod:
    return Pod(f"http://{name}", standing, frozenset({MODEL}), **stated)


def letters(fleet: Fleet, *, avoid: Sequence[str] = (), **bounds: frozenset[str]) -> str:
    """Who may serve a request that is bound so, one letter a pod."""
    roster = eligible_for(fleet, structs.replace(ask(), **bounds), frozenset(f"http://{name}" for name in avoid))
    return "".join(engine.pod[-1] for engine in roster.engines)


def rejection(fleet: Fleet, *, model: str = MODEL, avoid: str = "", **bounds: frozenset[str]) -> RequestRejected:
    with pytest.raises(RequestRejected) as rejected:
        eligible_for(fleet, structs.replace(ask(model=model), **bounds), frozenset({avoid}))
    return rejected.value


# -- who may -----------------------------------------------------------------------------------------------------------


def test_who_failed_the_request_is_left_out() -> None:
    """And whoever it must not go to: both bounds hold."""
    fleet = single_engine_fleet(eligible_pod("a"), eligible_pod("b"), eligible_pod("c"))
    assert letters(fleet) == "abc"
    assert letters(fleet, avoid="b") == "ac"
    assert letters(fleet, pods=frozenset({"http://a", "http://b"})) == "ab"
    assert letters(fleet, pods=frozenset({"http://a", "http://b"}), avoid="b") == "a"


def test_those_that_are_there_for_prefill_answer_where_no_others_are_left() -> None:
    """They can, and it is said that they should not have had to."""
    fleet = single_engine_fleet(
        eligible_pod("a", facts=PodFacts(kv_connector="NixlConnector")),
        eligible_pod("b", facts=PodFacts(kv_connector="NixlConnector")),
        roles=(Role.DECODE, Role.PREFILL),
    )
    assert letters(fleet) == "a"
    assert letters(fleet, avoid="a") == "b"
    assert eligible_for(fleet, ask(), frozenset({"http://a"})).fallback is PairingFallback.NO_DECODE_POD
    assert rejection(fleet, avoid="http://a", pods=frozenset({"http://a"})).reason is Reason.NO_POD_READY


def test_doubted_pods_are_called_where_no_other_is_left() -> None:
    """Not while another is ready, but rather than refuse; and never where the request must not go."""
    fleet = single_engine_fleet(eligible_pod("a", PodState.SUSPECT), eligible_pod("b"))
    assert letters(fleet) == "b"
    assert letters(fleet, avoid="b") == "a"
    assert rejection(fleet, avoid="http://b", pods=frozenset({"http://b"})).reason is Reason.NO_POD_READY


def test_requests_are_computed_where_they_may_be() -> None:
    """In an allowed region, there again after a failure, and else nowhere, however many are ready elsewhere."""
    eu = frozenset({"eu"})
    fleet = single_engine_fleet(
        eligible_pod("a", region="eu"),
        eligible_pod("b", region="us"),
        eligible_pod("c", region="eu"),
        eligible_pod("d"),
    )
    assert letters(fleet, regions=eu) == "ac"
    assert letters(fleet, regions=eu, avoid="a") == "c"
    assert rejection(fleet, regions=frozenset({"mars"})).reason is Reason.REGION_NOT_ALLOWED
    for name in "ac":
        fleet.put(replace(eligible_pod(name, PodState.UNREADY), region="eu"))
    assert rejection(fleet, regions=eu).reason is Reason.NO_POD_READY


def test_a_warm_engine_elsewhere_does_not_draw_a_request_out_of_its_region() -> None:
    """The bound stands above all seconds."""
    router = router_of(2)
    for url, region in (("http://0", "eu"), ("http://1", "us")):
        known = router.fleet.pod(url)
        assert known
        router.put_pod(replace(known, region=region))
    assert serve(router, ask(), avoid="http://0").engine.pod == "http://1"
    assert place(router, structs.replace(ask(), regions=frozenset({"eu"}))).engine.pod == "http://0"


# -- who is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pods", [(), (eligible_pod("a"),)])
def test_an_unknown_model_is_rejected(pods: Sequence[Pod]) -> None:
    """Nobody serves it, ready or not, or no pod has been found at all: the client has to change something."""
    rejected = rejection(single_engine_fleet(*pods), model="nope")
    assert (rejected.reason, rejected.param, rejected.retry_after_s) == (Reason.UNKNOWN_MODEL, "model", None)
    assert "`nope`" in rejected.message


def test_nothing_is_reported_to_be_unknown_while_another_has_yet_to_report() -> None:
    """A pod or a source: the model may be theirs, so the client may come again; a pod elsewhere cannot help."""
    silent = Pod("http://b", PodState.OPEN_CIRCUIT, region="eu", has_reported_models=False)
    fleet = single_engine_fleet(eligible_pod("a", region="us"), silent)
    rejected = rejection(fleet, model="nope")
    assert rejected.reason is Reason.NO_POD_READY
    assert "models of some pods are not known yet" in rejected.message, "who has misspelt a name is to guess it"
    assert rejection(fleet, regions=frozenset({"eu"})).reason is Reason.NO_POD_READY
    assert rejection(fleet, regions=frozenset({"asia"})).reason is Reason.REGION_NOT_ALLOWED
    fleet.put(replace(silent, has_reported_models=True))
    assert rejection(fleet, model="nope").reason is Reason.UNKNOWN_MODEL
    assert rejection(fleet, regions=frozenset({"eu"})).reason is Reason.REGION_NOT_ALLOWED
    fleet.is_complete = False
    assert rejection(fleet, model="nope").reason is Reason.NO_POD_READY


def test_a_model_that_the_operator_names_exists() -> None:
    """Also while it has no pod, as when it is scaled from zero; that names nothing in a region where it is not."""
    fleet = single_engine_fleet(eligible_pod("a", region="us"))
    fleet.configured_models = frozenset({MODEL, "asleep"})
    rejected = rejection(fleet, model="asleep")
    assert (rejected.reason, rejected.message) == (Reason.NO_POD_READY, "No pod currently serves `asleep`.")
    assert rejection(fleet, model="nope").reason is Reason.UNKNOWN_MODEL
    assert rejection(fleet, regions=frozenset({"eu"})).reason is Reason.REGION_NOT_ALLOWED


def test_a_known_model_without_a_ready_pod_is_rejected_for_now() -> None:
    """Worth coming back for."""
    rejected = rejection(single_engine_fleet(eligible_pod("a", PodState.UNREADY)))
    assert (rejected.reason, rejected.message) == (Reason.NO_POD_READY, f"No pod that serves `{MODEL}` is ready.")
    assert rejected.retry_after_s
    assert rejected.retry_after_s > 0


def test_when_all_pods_have_failed_a_request_it_is_rejected() -> None:
    """The last one avoided is the last one there is."""
    assert rejection(single_engine_fleet(eligible_pod("a")), avoid="http://a").reason is Reason.NO_POD_READY


def test_a_rejected_request_leaves_nothing_behind() -> None:
    """Nothing is charged, and a client cannot grow our tables by inventing models."""
    router = router_of(1)
    for number in range(50):
        with pytest.raises(RequestRejected):
            place(router, ask(model=f"invented-{number}"))
    with pytest.raises(RequestRejected):
        place(router, ask(), avoid="http://0")
    assert set(router.counters) <= {MODEL}
    assert router.ledger.is_empty()
