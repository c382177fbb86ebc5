"""Scorers by name, and the routings made of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import NODEFAULT
from msgspec.structs import fields

from routing.candidates import Candidates, Scorer
from routing.decision.router import LOAD_SCORERS, SESSION_SCORER
from routing.request import Api, Request
from scorers.registry import SCORERS, routings
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "m", session="s")


def test_the_scorers_that_the_router_names_exist() -> None:
    """A renamed scorer would otherwise lose what the router does for it, silently."""
    assert {*LOAD_SCORERS, SESSION_SCORER} <= {scorer.name for scorer in SCORERS}


def test_every_scorer_is_a_value_with_a_name_of_its_own() -> None:
    """Names stand in receipts and configuration; fields are parameters with defaults."""
    assert len({scorer.name for scorer in SCORERS}) == len(SCORERS)
    for scorer in SCORERS:
        assert isinstance(scorer(), Scorer)
        assert hasattr(scorer, "__dataclass_fields__")
        assert scorer() == scorer()


def test_the_routings_that_can_be_requested() -> None:
    """Three, made of registered scorers only. Others may be registered, for configurations to add."""
    assert set(routings()) == {"warm", "round-robin", "least-loaded"}
    assert {type(scorer) for routing in routings().values() for scorer in routing} <= set(SCORERS)


@pytest.mark.parametrize("scorer", [scorer for scorer in SCORERS if hasattr(scorer, "needs")])
def test_what_a_scorer_needs_is_a_column(scorer: type[Scorer]) -> None:
    """With its default the router skips the scorer, so it must have one."""
    columns = {column.name: column for column in fields(Candidates)}
    assert columns[getattr(scorer, "needs", "")].default is not NODEFAULT


numbers = st.floats(0, 1e6)


@st.composite
def any_candidates(draw: st.DrawFn) -> Candidates:
    count = draw(st.integers(1, 5))

    def column(each: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(each, min_size=count, max_size=count))

    return candidates_of(
        count,
        now_s=draw(st.floats(0, 1e5)),
        prefill_work=column(numbers),
        ahead_s=column(numbers),
        running=column(numbers),
        kv_tokens=column(numbers),
        kv_capacity=column(st.floats(1, 1e6) | st.just(float("inf"))),
        ready_since_s=column(st.floats(0, 1e5)),
        session_at=draw(st.none() | st.integers(0, count - 1)),
        holds_adapter=draw(st.sampled_from([[], [True] * count, [False] * count])),
    )


@pytest.mark.parametrize("scorer", SCORERS)
@given(seen=any_candidates())
def test_every_scorer_answers_for_all_or_for_none(scorer: type[Scorer], seen: Candidates) -> None:
    """One finite number per candidate in their order, or nothing at all; asked again it says the same."""
    seconds = scorer().score(REQUEST, seen)
    assert len(seconds) in (0, len(seen.engines))
    assert all(abs(each) < float("inf") for each in seconds)
    assert scorer().score(REQUEST, seen) == seconds
