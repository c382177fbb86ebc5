"""Who was refused is known again."""

from __future__ import annotations

from routing.blocks import cut_prompt
from routing.request import Api, Request
from tenancy.returning import MEMORY_S, Returning, face_of

REQUEST = Request("1", Api.CHAT, "m", cut_prompt(b"tell me a tale " * 200, 0))
FACE = face_of(REQUEST, "acme")


def test_its_promise_runs_from_its_first_coming() -> None:
    """However often it was refused since."""
    returning = Returning()
    returning.refused(FACE, 10.0, 10.0)
    returning.refused(FACE, 12.0, 12.0)
    assert returning.first_s(FACE, 20.0) == 10.0


def test_who_was_served_is_forgotten() -> None:
    """The same question later is another request."""
    returning = Returning()
    returning.refused(FACE, 10.0, 10.0)
    returning.served(FACE)
    assert returning.first_s(FACE, 20.0) == 20.0


def test_another_tenants_like_is_another() -> None:
    """Nobody is late for another's sake."""
    assert face_of(REQUEST, "acme") != face_of(REQUEST, "other")


def test_a_prompt_without_blocks_has_no_face() -> None:
    """Too short to be told from others."""
    assert face_of(Request("1", Api.CHAT, "m"), "acme") is None


def test_memory_is_bounded_by_time() -> None:
    """Clients give up."""
    returning = Returning()
    for number in range(10):
        returning.refused(("t", "m", number, 1), float(number), float(number))
    returning.refused(FACE, MEMORY_S + 5.0, MEMORY_S + 5.0)
    assert len(returning) == 6
