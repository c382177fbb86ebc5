"""Who is refused by a choice of engines, and who is asked rather than that."""

from dataclasses import replace

import pytest
from msgspec import structs

from routing.pods import Pod, Standing
from routing.refusal import Reason, Refused
from routing.router import Router
from tests.routing.engines import MODEL, ask, place, router_of, serve, texts_apart


def refusal(router: Router, model: str, *, avoid: str = "") -> Refused:
    with pytest.raises(Refused) as refused:
        place(router, ask(model=model), avoid=avoid)
    return refused.value


def test_an_unknown_model_is_refused() -> None:
    """Nobody serves it, ready or not: the client has to change something."""
    refused = refusal(router_of(2), "nope")
    assert (refused.reason, refused.param, refused.retry_after_s) == (Reason.UNKNOWN_MODEL, "model", None)
    assert "`nope`" in refused.message


def test_a_known_model_without_a_ready_pod_is_refused_for_now() -> None:
    """Worth coming back for; and nothing was charged."""
    router = router_of(1)
    pod = router.fleet.pod("http://0")
    assert pod
    router.put_pod(Pod("http://0", Standing.UNREADY, pod.models, engines=pod.engines))
    refused = refusal(router, MODEL)
    assert refused.reason is Reason.NO_POD_READY
    assert refused.retry_after_s
    assert refused.retry_after_s > 0
    assert router.ledger.is_empty()


def test_doubted_pods_are_asked_where_nobody_else_is_left() -> None:
    """Not while another is ready, but rather than refuse; and never where the request must not go."""
    router = router_of(2)
    pod = router.fleet.pod("http://0")
    assert pod
    router.put_pod(replace(pod, standing=Standing.DOUBTED))
    for number in range(3):
        assert place(router, ask(texts_apart(number))).engine.pod == "http://1"
    assert place(router, ask(), avoid="http://1").engine.pod == "http://0"
    with pytest.raises(Refused) as refused:
        place(router, structs.replace(ask(), pods=frozenset({"http://1"})), avoid="http://1")
    assert refused.value.reason is Reason.NO_POD_READY


def test_when_all_pods_have_failed_a_request_it_is_refused() -> None:
    """The last one avoided is the last one there is."""
    assert refusal(router_of(1), MODEL, avoid="http://0").reason is Reason.NO_POD_READY


def test_without_pods_no_model_exists() -> None:
    """A gateway that has found nothing yet."""
    assert refusal(router_of(0), MODEL).reason is Reason.UNKNOWN_MODEL


def test_requests_are_computed_where_they_may_be() -> None:
    """In an allowed region however warm or idle others are, there again after a failure, and else nowhere."""
    router = router_of(3)
    for url, region in (("http://0", "eu"), ("http://1", "us"), ("http://2", "eu")):
        pod = router.fleet.pod(url)
        assert pod
        router.put_pod(replace(pod, region=region))
    warm_elsewhere = serve(router, ask(), avoid="http://0")
    while warm_elsewhere.engine.pod != "http://1":
        warm_elsewhere = serve(router, ask(), avoid="http://2")
    bound = structs.replace(ask(), regions=frozenset({"eu"}))
    first = place(router, bound)
    again = place(router, bound, avoid=first.engine.pod)
    assert {first.engine.pod, again.engine.pod} == {"http://0", "http://2"}
    with pytest.raises(Refused) as refused:
        place(router, structs.replace(ask(), regions=frozenset({"mars"})))
    assert refused.value.reason is Reason.REGION_NOT_ALLOWED
    for url in ("http://0", "http://2"):
        pod = router.fleet.pod(url)
        assert pod
        router.put_pod(replace(pod, standing=Standing.UNREADY))
    with pytest.raises(Refused) as refused:
        place(router, bound)
    assert refused.value.reason is Reason.NO_POD_READY


def test_a_client_cannot_grow_our_tables_by_inventing_models() -> None:
    """Refused models leave nothing behind."""
    router = router_of(1)
    for number in range(50):
        refusal(router, f"invented-{number}")
    assert set(router._counters) <= {MODEL}
