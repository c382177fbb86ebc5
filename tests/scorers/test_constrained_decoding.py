"""Constrained requests keep away from engines whose speculation their grammar defeats."""

from routing.decision.router import Router
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request
from scorers.constrained_decoding import ConstrainedDecoding
from scorers.registry import routings
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m", is_constrained=True)


def test_extra_seconds_a_token_count_for_each_token_of_the_answer() -> None:
    """Of a typical answer, where answers were seen."""
    seen = candidates_of(2, token_excess_s=[0.01, 0.0], typical_answer_tokens=100.0)
    assert ConstrainedDecoding().score(REQUEST, seen) == [1.0, 0.0]
    assert ConstrainedDecoding(weight=2.0).score(REQUEST, seen) == [2.0, 0.0]


def test_without_a_finding_there_is_no_price() -> None:
    """The scorer is skipped."""
    assert ConstrainedDecoding().score(REQUEST, candidates_of(2)) == []


def chosen(router: Router, *, is_constrained: bool) -> str:
    request = Request("r", Api.CHAT, "m", is_constrained=is_constrained)
    placement = router.place(request, avoid=frozenset(), now_s=1.0, draw=0.0)
    placement.release(1.0)
    return placement.engine.pod


def test_each_kind_of_request_has_prices_of_its_own() -> None:
    """Constrained ones leave the pod that a finding names, and plain ones leave the others to them."""
    router = Router(routings()["warm"])
    for url in ("http://a:1", "http://b:1"):
        router.put_pod(Pod(url, PodState.READY, models=frozenset(("m",)), ready_since_s=-1e9))
        router.reshape_pod(url, (EngineShape(),))
    router.set_token_excess({"http://a:1": 0.05}, {"http://b:1": 0.01})
    assert chosen(router, is_constrained=True) == "http://b:1"
    assert chosen(router, is_constrained=False) == "http://a:1"
    router.remove_pod("http://b:1")
    assert router.plain_excess_s == {}


def test_only_constrained_requests_move() -> None:
    """Others go where they went; when the finding is gone, so do these. A new engine in a slot has no price."""
    router = Router(routings()["warm"])
    for url in ("http://a:1", "http://b:1"):
        router.put_pod(Pod(url, PodState.READY, models=frozenset(("m",)), ready_since_s=-1e9))
        router.reshape_pod(url, (EngineShape(),))
    before = chosen(router, is_constrained=True)
    router.set_token_excess({before: 0.05}, {})
    assert chosen(router, is_constrained=True) != before
    assert len(router.constrained_excess_s) == 1
    router.remove_pod(before)
    assert router.constrained_excess_s == {}


def test_a_large_fleet_is_scored_completely_for_constrained_requests() -> None:
    """The pods with the shortest queues may all be priced."""
    router = Router(routings()["warm"])
    urls = [f"http://{number:02}:1" for number in range(60)]
    for url in urls:
        router.put_pod(Pod(url, PodState.READY, models=frozenset(("m",)), ready_since_s=-1e9))
        router.reshape_pod(url, (EngineShape(),))
    router.set_token_excess(dict.fromkeys(urls[:-1], 0.05), {})
    assert chosen(router, is_constrained=True) == urls[-1]
