"""The one list of facts that all scorers read."""

import pytest
from msgspec.structs import fields

from routing.candidates import Candidates, Scorer
from routing.request import Request
from tests.routing.engines import MODEL, ask, place, router_of

ONE_NUMBER = {
    "now_s",
    "prompt_tokens",
    "least_kv_capacity",
    "newest_since_s",
    "session_at",
    "displaced_share",
    "waited_s",
    "prefix",
    "engines_in_all",
    "usual_prefill_s",
    "usual_stream_s",
}
OF_SOME = {"holds_adapter", "open_steps", "prompts", "prefillers", "prefill_shares", "burden_s"}


class Watching:
    """A scorer that keeps what it was shown."""

    name = "watching"

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
    assert watching.seen[1].session_at == [engine.slot for engine in router.fleet.roster(MODEL).engines].index(0)
    assert watching.seen[1].least_kv_capacity == 100_000
