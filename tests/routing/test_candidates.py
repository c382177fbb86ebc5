"""The one list of facts that all scorers read."""

from typing import ClassVar

import pytest
from msgspec.structs import fields

from routing.blocks import Prompt
from routing.candidates import MAX_SHOWN_CANDIDATES, Candidates, RoutingDecision, Scorer, ScoreTable
from routing.decision.placement import Placement
from routing.request import Api, Request
from tests.routing.engines import MODEL, ask, place, router_of
from tests.scorers.columns import candidates_of

ONE_NUMBER = {
    "now_s",
    "prompt_tokens",
    "output_tokens",
    "min_kv_capacity",
    "newest_since_s",
    "session_at",
    "displaced_share",
    "spill_share",
    "waited_s",
    "prefix",
    "engines_in_all",
    "typical_answer_tokens",
    "median_stream_s",
    "answer_spread",
    "typical_prefill_s",
    "typical_stream_s",
    "lacks_kv_room",
    "has_new_pods",
    "has_decode_engines",
}
OF_SOME = {
    *("holds_adapter", "open_steps", "prompts", "prefillers", "prefill_shares", "burden_s", "stalls_s", "spill_ranks"),
    *("token_excess_s", "draining_streams", "distances_s", "lockstep_s", "stalled", "slowed", "in_step"),
}


class Watching:
    """A scorer that keeps what it was shown."""

    name: ClassVar[str] = "watching"

    def __init__(self) -> None:
        self.seen: list[Candidates] = []

    def score(self, request: Request, candidates: Candidates) -> list[float]:
        self.seen.append(candidates)
        return []


@pytest.mark.parametrize("pods", [1, 2, 7])
def test_every_column_has_one_entry_per_candidate(pods: int) -> None:
    """In one order, whatever the number of engines; shown once for all of them together."""
    watching = Watching()
    assert isinstance(watching, Scorer)
    router = router_of(pods, scorers=[watching])
    place(router, ask(session="s"))
    place(router, ask(session="s"), now_s=1.0)
    assert len(watching.seen) == 2
    for seen in watching.seen:
        for field in fields(seen):
            if field.name not in ONE_NUMBER | OF_SOME:
                assert len(getattr(seen, field.name)) == pods, field.name
    assert watching.seen[1].session_at == [engine.slot for engine in router.fleet.eligible(MODEL).engines].index(0)
    assert watching.seen[1].min_kv_capacity == 100_000


def decision(totals: list[float], at: int) -> RoutingDecision:
    scored = ScoreTable(("prefill", "lora"), (totals, [0.0] * len(totals)), totals)
    running = [float(number) for number in range(len(totals))]
    return RoutingDecision(candidates_of(len(totals), running=running, warm_tokens=[15.7] * len(totals)), scored, at)


def test_the_best_are_shown_in_order() -> None:
    """Few of many, best first, the chosen one marked."""
    shown = list(decision([5.0, 1.0, 3.0, 2.0], at=1).top())
    assert [each.engine for each in shown] == [f"http://pod-{slot}" for slot in (1, 3, 2, 0)]
    assert [each.chosen for each in shown] == [True, False, False, False]
    assert [each.running for each in shown] == [1, 3, 2, 0]


@pytest.mark.parametrize("at", [0, 7, 8, 49])
def test_the_chosen_one_is_always_shown(at: int) -> None:
    """Even where it was not among the best (a tie broken, a rule of its own)."""
    shown = list(decision([float(number) for number in range(50)], at).top())
    assert len(shown) == MAX_SHOWN_CANDIDATES
    assert [each.engine for each in shown if each.chosen] == [f"http://pod-{at}"]


def test_every_scorers_seconds_are_reported_by_name() -> None:
    """Rounded to microseconds and whole tokens."""
    (shown,) = decision([0.12345678], at=0).top()
    assert shown.scores_s == {"prefill": 0.123457, "lora": 0.0}
    assert shown.total_s == 0.123457
    assert shown.cached_input_tokens == 16


def test_stalls_are_looked_at_only_where_they_may_matter() -> None:
    """Not for short prompts in a calm fleet; while streams are stalled, or for a long prompt, they are."""
    watching, placed = Watching(), list[Placement]()
    router = router_of(1, scorers=[watching])

    def looks(size: int, now_s: float) -> bool:
        prompt = Prompt((int(now_s) + 1,), (size,), size)
        placed.append(place(router, Request(f"{now_s}", Api.CHAT, MODEL, prompt), now_s=now_s))
        return bool(watching.seen[-1].stalls_s)

    assert not looks(5_000, 0.0)
    assert looks(500_000, 1.0)
    assert looks(5_000, 2.0)
    for placement in placed:
        placement.release(3.0)
    assert not looks(5_000, 600.0)
