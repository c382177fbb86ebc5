"""What a gateway of the version before really sent, as it was recorded there: four batches of two requests."""

from __future__ import annotations

import json
from pathlib import Path

from gateway.replica_sync.updates import SCHEMA, decode_batch
from routing.affinity import hashed_id
from routing.blocks import cut_prompt
from routing.decision.router import Router
from routing.replica_state import PlacedUpdate, ReplicaState, SettledUpdate
from tests.gateway.replica_sync import schema1
from tests.routing.engines import router_of

RECORDED = Path(__file__).parent / "recorded" / "schema1_batches.json"
"""Written by the last commit that writes schema 1, 56405c69."""

BATCHES = [bytes.fromhex(batch) for batch in json.loads(RECORDED.read_text())["batches"]]

FIRST = cut_prompt(b"A system prompt. " * 80 + b"1 " * 200, 0)


def applied(count: int) -> tuple[Router, ReplicaState]:
    """A router with the same engines that has received so many of the batches."""
    router = router_of(2)
    state = ReplicaState(router)
    for payload in BATCHES[:count]:
        batch = decode_batch(payload)
        assert batch.skipped == 0
        state.apply(batch.replica_id, batch.number, batch.updates, float(batch.number))
    return router, state


def test_they_are_of_schema_1() -> None:
    """Older than what is written here."""
    assert {schema1.read(payload)[0].schema for payload in BATCHES} == {1} != {SCHEMA}


def test_requests_of_the_version_before_count_as_load_until_they_end() -> None:
    """Both while they are open, one after the third batch, none after the fourth; without an objective."""
    placed = [update for update in decode_batch(BATCHES[0]).updates if isinstance(update, PlacedUpdate)]
    assert [update.charge.objective for update in placed] == [None, None]
    running = [sum(applied(count)[0].ledger.running) for count in range(1, 5)]
    assert running == [2, 2, 1, 0]
    router, state = applied(4)
    assert router.ledger.is_empty()
    assert (state.rejected, state.gaps) == (0, 0)


def test_what_the_version_before_has_placed_is_warm_here() -> None:
    """Its prompt, its session, and the response that it had."""
    router, _ = applied(4)
    (settled,) = (update for update in decode_batch(BATCHES[2]).updates if isinstance(update, SettledUpdate))
    assert router.index.match(FIRST, 0b11)
    assert router.sessions.get("talk") is not None
    assert settled.response == hashed_id("resp")
