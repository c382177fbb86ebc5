"""Who may serve a request, who is asked before it is refused, and why it is refused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from routing.canary import CanaryTerms, Rollout, not_meant
from routing.eligible import eligible
from routing.facts import PodFacts, Role
from routing.fallback import Fallback
from routing.fleet import Fleet
from routing.pods import EngineShape, Pod, Standing
from routing.refusal import Reason, Refused
from tests.routing.engines import MODEL, ask, place, router_of, serve, texts_apart


def single_engine_fleet(*pods: Pod, roles: Sequence[Role] = ()) -> Fleet:
    """Pods of one engine each, that may do what `roles` says, or everything."""
    fleet = Fleet()
    for at, pod in enumerate(pods):
        fleet.put(pod)
        fleet.reshape(pod.url, [EngineShape(role=roles[at] if roles else Role.EITHER)])
    return fleet


def eligible_pod(name: str, standing: Standing = Standing.READY, **said: Any) -> Pod:
    return Pod(f"http://{name}", standing, frozenset({MODEL}), **said)


def letters(fleet: Fleet, *, avoid: Sequence[str] = (), **bounds: frozenset[str]) -> str:
    """Who may serve a request that is bound so, one letter a pod."""
    roster = eligible(fleet, structs.replace(ask(), **bounds), frozenset(f"http://{name}" for name in avoid))
    return "".join(engine.pod[-1] for engine in roster.engines)


def refusal(fleet: Fleet, *, model: str = MODEL, avoid: str = "", **bounds: frozenset[str]) -> Refused:
    with pytest.raises(Refused) as refused:
        eligible(fleet, structs.replace(ask(model=model), **bounds), frozenset({avoid}))
    return refused.value


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
    assert eligible(fleet, ask(), frozenset({"http://a"})).fallback is Fallback.NO_DECODE_POD
    assert refusal(fleet, avoid="http://a", pods=frozenset({"http://a"})).reason is Reason.NO_POD_READY


def test_doubted_pods_are_asked_where_nobody_else_is_left() -> None:
    """Not while another is ready, but rather than refuse; and never where the request must not go."""
    fleet = single_engine_fleet(eligible_pod("a", Standing.DOUBTED), eligible_pod("b"))
    assert letters(fleet) == "b"
    assert letters(fleet, avoid="b") == "a"
    assert refusal(fleet, avoid="http://b", pods=frozenset({"http://b"})).reason is Reason.NO_POD_READY


def test_requests_are_computed_where_they_may_be() -> None:
    """In an allowed region, there again after a failure, and else nowhere, however many are ready elsewhere."""
    eu = frozenset({"eu"})
    fleet = single_engine_fleet(eligible_pod("a", region="eu"), eligible_pod("b", region="us"), eligible_pod("c", region="eu"), eligible_pod("d"))
    assert letters(fleet, regions=eu) == "ac"
    assert letters(fleet, regions=eu, avoid="a") == "c"
    assert refusal(fleet, regions=frozenset({"mars"})).reason is Reason.REGION_NOT_ALLOWED
    for name in "ac":
        fleet.put(replace(eligible_pod(name, Standing.UNREADY), region="eu"))
    assert refusal(fleet, regions=eu).reason is Reason.NO_POD_READY


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
def test_an_unknown_model_is_refused(pods: Sequence[Pod]) -> None:
    """Nobody serves it, ready or not, or no pod has been found at all: the client has to change something."""
    refused = refusal(single_engine_fleet(*pods), model="nope")
    assert (refused.reason, refused.param, refused.retry_after_s) == (Reason.UNKNOWN_MODEL, "model", None)
    assert "`nope`" in refused.message


def test_nothing_is_said_to_be_unknown_while_somebody_has_yet_to_tell() -> None:
    """A pod or a source: the model may be theirs, so the client may come again; a pod elsewhere cannot help."""
    silent = Pod("http://b", Standing.BROKEN, region="eu", has_told=False)
    fleet = single_engine_fleet(eligible_pod("a", region="us"), silent)
    refused = refusal(fleet, model="nope")
    assert refused.reason is Reason.NO_POD_READY
    assert "not all have told yet" in refused.message, "who has misspelt a name is to guess it"
    assert refusal(fleet, regions=frozenset({"eu"})).reason is Reason.NO_POD_READY
    assert refusal(fleet, regions=frozenset({"asia"})).reason is Reason.REGION_NOT_ALLOWED
    fleet.put(replace(silent, has_told=True))
    assert refusal(fleet, model="nope").reason is Reason.UNKNOWN_MODEL
    assert refusal(fleet, regions=frozenset({"eu"})).reason is Reason.REGION_NOT_ALLOWED
    fleet.is_whole = False
    assert refusal(fleet, model="nope").reason is Reason.NO_POD_READY


def test_a_model_that_the_operator_names_exists() -> None:
    """Also while it has no pod, as when it is scaled from zero; that names nothing in a region where it is not."""
    fleet = single_engine_fleet(eligible_pod("a", region="us"))
    fleet.named = frozenset({MODEL, "asleep"})
    refused = refusal(fleet, model="asleep")
    assert (refused.reason, refused.message) == (Reason.NO_POD_READY, "No pod serves `asleep` now.")
    assert refusal(fleet, model="nope").reason is Reason.UNKNOWN_MODEL
    assert refusal(fleet, regions=frozenset({"eu"})).reason is Reason.REGION_NOT_ALLOWED


def test_a_known_model_without_a_ready_pod_is_refused_for_now() -> None:
    """Worth coming back for."""
    refused = refusal(single_engine_fleet(eligible_pod("a", Standing.UNREADY)))
    assert (refused.reason, refused.message) == (Reason.NO_POD_READY, f"No pod that serves `{MODEL}` is ready.")
    assert refused.retry_after_s
    assert refused.retry_after_s > 0


def test_when_all_pods_have_failed_a_request_it_is_refused() -> None:
    """The last one avoided is the last one there is."""
    assert refusal(single_engine_fleet(eligible_pod("a")), avoid="http://a").reason is Reason.NO_POD_READY


def test_a_refused_request_leaves_nothing_behind() -> None:
    """Nothing is charged, and a client cannot grow our tables by inventing models."""
    router = router_of(1)
    for number in range(50):
        with pytest.raises(Refused):
            place(router, ask(model=f"invented-{number}"))
    with pytest.raises(Refused):
        place(router, ask(), avoid="http://0")
    assert set(router._counters) <= {MODEL}
    assert router.ledger.is_empty()


# -- whom a canary's share leaves out ----------------------------------------------------------------------------------


def on_trial(fleet: Fleet, share: float) -> Rollout:
    """The pods of revision `new` on trial."""
    rollout = Rollout([CanaryTerms("c", revision="new", share=share)])
    assert rollout.begin({pod.url: (pod.pool, pod.facts.revision) for pod in fleet.pods}) is not None
    return rollout


NEW = PodFacts(revision="new")


def test_a_request_is_meant_for_the_canary_or_for_the_others() -> None:
    """By its session: each goes to the same side again."""
    fleet = single_engine_fleet(eligible_pod("a"), eligible_pod("b"), eligible_pod("c", facts=NEW))
    rollout = on_trial(fleet, 0.5)
    sides = [not_meant(fleet, rollout, ask(session=str(number)), frozenset()) for number in range(100)]
    assert set(sides) == {frozenset({"http://c"}), frozenset({"http://a", "http://b"})}
    assert sides == [not_meant(fleet, rollout, ask(session=str(number)), frozenset()) for number in range(100)]


def test_nobody_is_refused_for_a_canarys_sake() -> None:
    """Where those it is meant for have failed, or only prefill, all others serve it as if there were no canary."""
    fleet = single_engine_fleet(eligible_pod("a"), eligible_pod("c", facts=NEW))
    rollout = on_trial(fleet, 0.01)
    sides = {not_meant(fleet, rollout, ask(session=str(number)), frozenset({"http://a"})) for number in range(100)}
    assert sides == {frozenset()}
    prefiller = replace(NEW, kv_connector="NixlConnector")
    pairs = single_engine_fleet(eligible_pod("a"), eligible_pod("c", facts=prefiller), roles=(Role.EITHER, Role.PREFILL))
    rollout = on_trial(pairs, 0.99)
    sides = {not_meant(pairs, rollout, ask(session=str(number)), frozenset()) for number in range(100)}
    assert sides == {frozenset(), frozenset({"http://c"})}


def test_the_router_keeps_a_canary_to_its_share() -> None:
    """Who is not meant is not chosen, however idle."""
    router = router_of(2)
    known = router.fleet.pod("http://1")
    assert known
    router.put_pod(replace(known, facts=NEW))
    router.rollout = on_trial(router.fleet, 0.01)
    chosen = [place(router, ask(texts_apart(number), session="s")).engine.pod for number in range(9)]
    assert set(chosen) == {"http://0"}
