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
    seen = candidates_of(2, constrained_token_s=[0.01, 0.0], typical_answer_tokens=100.0)
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


def test_only_constrained_requests_move() -> None:
    """Others go where they went; when the finding is gone, so do these. A new engine in a slot has no price."""
    router = Router(routings()["warm"])
    for url in ("http://a:1", "http://b:1"):
        router.put_pod(Pod(url, PodState.READY, models=frozenset(("m",)), ready_since_s=-1e9))
        router.reshape_pod(url, (EngineShape(),))
    before = chosen(router, is_constrained=True)
    router.set_constrained_excess({before: 0.05})
    assert chosen(router, is_constrained=True) != before
    assert len(router.constrained_excess_s) == 1
    router.remove_pod(before)
    assert router.constrained_excess_s == {}
