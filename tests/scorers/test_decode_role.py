"""Prefill can be kept from engines that are there for decoding."""

from routing.facts import Role
from routing.pods import Engine
from routing.request import Api, Request
from scorers.decode_role import DecodeRolePenalty
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m")
ENGINES = [Engine(slot, f"http://{role}", role=role) for slot, role in enumerate(Role)]


def test_prefill_on_a_decode_engine_has_its_price() -> None:
    """On no other, and not where nothing is left to compute."""
    dear = DecodeRolePenalty(penalty_s=5.0)
    by_role = dict(zip(Role, dear.score(REQUEST, candidates_of(3, engines=ENGINES)), strict=True))
    assert by_role == {Role.EITHER: 0.0, Role.PREFILL: 0.0, Role.DECODE: 5.0}
    assert dear.score(REQUEST, candidates_of(3, engines=ENGINES, own_s=[0.0] * 3)) == [0.0] * 3


def test_by_default_it_says_nothing() -> None:
    """Nor where no engine is there for decoding."""
    assert DecodeRolePenalty().score(REQUEST, candidates_of(3, engines=ENGINES)) == []
    assert DecodeRolePenalty(penalty_s=5.0).score(REQUEST, candidates_of(2)) == []
