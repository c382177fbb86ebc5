"""Prefill keeps away from an engine with streams of its former role, within bounds."""

from routing.request import Api, Request
from scorers.role_drain import RoleDrain
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m")


def test_each_stream_left_is_stalled_for_our_prefill() -> None:
    """Eight streams, a tenth of a second each, at half a second of TTFT per second; none where none is left."""
    seen = candidates_of(2, draining_streams=[8.0, 0.0], own_s=[0.1, 0.1])
    assert RoleDrain(stall_weight=0.5).score(REQUEST, seen) == [0.4, 0.0]


def test_first_tokens_of_others_do_not_wait_without_end() -> None:
    """A queue elsewhere that is longer than the bound is worse."""
    seen = candidates_of(2, draining_streams=[40.0, 0.0], own_s=[2.0, 2.0])
    assert RoleDrain(max_penalty_s=3.0).score(REQUEST, seen) == [3.0, 0.0]


def test_no_penalty_where_no_engine_drains() -> None:
    """The column is empty."""
    assert RoleDrain().score(REQUEST, candidates_of(2)) == []
