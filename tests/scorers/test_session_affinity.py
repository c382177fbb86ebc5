"""Sessions stay where they are when all else is equal; continued responses go where they are stored."""

from routing.request import Api, Request
from scorers.session_affinity import SessionAffinity
from tests.scorers.columns import candidates_of


def test_a_session_breaks_ties() -> None:
    """A few milliseconds for its engine, nothing for the others."""
    request = Request("r", Api.CHAT, "m", session="s")
    assert SessionAffinity(tie_break_s=0.25).score(request, candidates_of(3, session_at=1)) == [0.0, -0.25, 0.0]


def test_a_continued_response_outweighs_nearly_all() -> None:
    """Only its pod can answer."""
    request = Request("r", Api.RESPONSES, "m", continues="resp-1", session="s")
    assert SessionAffinity(stored_response_s=300.0).score(request, candidates_of(2, session_at=0)) == [-300.0, 0.0]


def test_without_a_known_place_it_says_nothing() -> None:
    """Also when the session's engine is not among the candidates."""
    assert SessionAffinity().score(Request("r", Api.CHAT, "m", session="s"), candidates_of(3)) == []
