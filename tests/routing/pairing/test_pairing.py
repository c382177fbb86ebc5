"""What may serve a request, as one value."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import fields

from routing.blocks import Prompt
from routing.candidates import estimate, predict
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.eligible import PairingFallback
from routing.facts import PodFacts, Role
from routing.kv_bytes import DEFAULT_KV_BYTES
from routing.pairing.links import BYTES_PER_S, FIXED_S, Link
from routing.pairing.roles import RoleGate, RoleTerms
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tests.routing.test_candidates import OF_SOME, ONE_NUMBER


def test_pairs_stand_behind_single_engines() -> None:
    """Each by its decode engine, with the prefill of the other."""
    router = split_fleet(1, 2)
    busy(router, "http://d1", 60)
    view = router._look(long(), frozenset(), 0.0)
    assert view.pairs is not None
    assert view.pairs.first == 2
    assert len(view.candidates.engines) == len(view.scored.totals) == 4
    assert estimate(view.candidates, view.scored, 0).prefill is None
    pair = estimate(view.candidates, view.scored, 2)
    assert pair.prefill is not None
    assert pair.prefill.pod == "http://p0"
    assert pair.engine is view.candidates.engines[view.pairs.singles[0]]


def test_a_prefill_request_is_predicted_by_itself() -> None:
    """Without the hand-over, which is learned from apart."""
    view = split_fleet(1, 1)._look(long(), frozenset(), 0.0)
    assert view.pairs is not None
    match = view.pairs.matches[0]
    leg = predict(view.pairs.prefill, match.at)
    assert leg.is_alone
    assert estimate(view.candidates, view.scored, 1).ttft_s > leg.ttft_s + match.transfer.seconds


COUNTS = st.integers(1, 5)


@given(COUNTS, COUNTS, st.integers(0, 200))
def test_columns_and_terms_are_as_long_as_there_are_candidates(prefill: int, decode: int, running: int) -> None:
    """Whatever the fleet; and every total is the sum of its terms."""
    router = split_fleet(prefill, decode)
    busy(router, f"http://d{prefill}", running)
    view = router._look(long(), frozenset(), 0.0)
    seen, scored = view.candidates, view.scored
    assert len(seen.engines) == 2 * decode
    for field in fields(seen):
        if field.name not in ONE_NUMBER | OF_SOME:
            assert len(getattr(seen, field.name)) == 2 * decode, field.name
    assert len(seen.prefillers) == len(seen.burden_s) == 2 * decode
    for at, total in enumerate(scored.totals):
        assert total == pytest.approx(sum(term[at] for term in scored.terms), abs=1e-9)


def test_what_a_pair_puts_on_its_decode_engine_is_no_prefill() -> None:
    """Those who decode there bear nothing of it."""
    view = split_fleet(1, 1)._look(long(), frozenset(), 0.0)
    single, pair = view.candidates.burden_s
    assert single == view.candidates.own_s[0] > 1.0
    assert pair == 0.0


MODEL = "m"

NIXL = PodFacts(kv_connector="NixlConnector", block_size=16)


def split_fleet(prefill: int = 2, decode: int = 2, facts: PodFacts = NIXL, *, gate: RoleGate | None = None) -> Router:
    """So many pods that prefill, and so many that decode."""
    router = Router(routings()["warm"], default_gate=gate, exact_sizes=True)
    roles = [Role.PREFILL] * prefill + [Role.DECODE] * decode
    for number, role in enumerate(roles):
        put(router, f"http://{role.value[0]}{number}", replace(facts, role=role))
    return router


def put(router: Router, url: str, facts: PodFacts) -> None:
    router.put_pod(Pod(url, state=PodState.READY, models=frozenset({MODEL}), facts=facts, ready_since_s=-1e5))
    router.reshape_pod(url, [EngineShape(None, facts.effective_role, 400_000, 16)])


def long(tokens: int = 16_000, **words: object) -> Request:
    """A request whose prompt nobody holds."""
    ends = tuple(range(1000, tokens + 1, 1000))
    blocks = tuple(hash((tokens, str(words), end)) for end in ends)
    request = Request("r", Api.CHAT, MODEL, Prompt(blocks, ends, tokens), stream=True)
    return structs.replace(request, **words) if words else request


def place(router: Router, request: Request, now_s: float = 0.0, avoid: str = "") -> Placement:
    return router.place(request, avoid=frozenset({avoid} if avoid else ()), now_s=now_s, draw=0.0)


def busy(router: Router, url: str, sequences: int) -> None:
    """So many decode there."""
    engine = router.fleet.engine(url)
    assert engine is not None
    charge = router.ledger.charge(
        engine.slot, prefill_tokens=0, prefill_s=0.0, kv_tokens=100, sequences=sequences, now_s=0.0
    )
    router.ledger.prefill_done(charge, 0.0)


def test_a_long_cold_prompt_is_prefilled_where_it_stalls_no_stream() -> None:
    """With many who decode on every decode engine, another engine does the prefill."""
    router = split_fleet()
    for url in ("http://d2", "http://d3"):
        busy(router, url, 60)
    placement = place(router, long())
    assert placement.prefill is not None
    assert placement.prefill.engine.role is Role.PREFILL
    assert placement.engine.role is Role.DECODE


def test_an_idle_decode_engine_does_all_itself() -> None:
    """Where nobody is spared anything, a hand-over only costs."""
    router = split_fleet()
    assert place(router, long()).prefill is None


def test_both_ledgers_are_charged_and_given_back() -> None:
    """Prefill and its KV on one side, room for KV and answer on the other, from before the prefill starts."""
    router = split_fleet(1, 1)
    busy(router, "http://d1", 60)
    ledger, request = router.ledger, long()
    placement = place(router, request)
    side = placement.prefill
    assert side is not None
    prefill, decode = side.engine.slot, placement.engine.slot
    assert ledger.prefill_tokens[decode] == 0.0
    assert ledger.prefill_tokens[prefill] > 16_000
    assert ledger.kv_tokens[prefill] == 16_001
    assert ledger.kv_tokens[decode] == 100 + 16_000 + request.expected_output_tokens
    side.prefill_done(Usage(16_000, 1, 0), 1.5)
    assert ledger.prefill_tokens[prefill] == 0.0
    assert ledger.running[prefill] == 1
    placement.first_token(1.6)
    assert ledger.running[prefill] == 0
    assert side.transfer_s is not None
    assert abs(side.transfer_s - 0.1) < 1e-9
    placement.release(3.0)
    assert ledger.running[decode] == 60


def test_a_pair_that_came_to_nothing_leaves_nothing() -> None:
    """Released before its first token, neither side is charged, nor believed to be warm."""
    router = split_fleet(1, 1)
    busy(router, "http://d1", 60)
    placement = place(router, long())
    assert placement.prefill is not None
    placement.release(0.5)
    placement.release(0.6)
    assert router.ledger.running == [0, 60]
    again = place(router, long(), now_s=1.0)
    assert again.prefill is not None
    assert again.prefill.predicted.cached_tokens == 0


def test_who_holds_the_prompt_already_needs_no_other() -> None:
    """Warm on the decode engine: nothing is computed and nothing moves."""
    router = split_fleet(1, 1)
    busy(router, "http://d1", 60)
    first = place(router, long())
    assert first.prefill is not None
    first.prefill.prefill_done(None, 1.4)
    first.first_token(1.5)
    first.release(2.0)
    again = place(router, long(), now_s=3.0)
    assert again.prefill is None
    assert again.predicted.cached_tokens > 15_000


@pytest.mark.parametrize(
    "other",
    [
        {"kv_connector": "MooncakeConnector"},
        {"kv_layout": "HND"},
        {"kv_dtype": "fp8"},
        {"block_size": 32},
        {"version": "0.33.0"},
        {"revision": "b"},
    ],
)
def test_pods_that_do_not_understand_each_other_never_pair(other: dict[str, Any]) -> None:
    """Connector, layout, dtype, block size, version and revision are alike, or nobody has said either."""
    router = split_fleet(0, 1, NIXL)
    busy(router, "http://d0", 60)
    put(router, "http://p", replace(NIXL, role=Role.PREFILL, **other))
    assert place(router, long()).prefill is None
    put(router, "http://q", replace(NIXL, role=Role.PREFILL))
    assert place(router, long(17_000)).prefill is not None


@pytest.mark.parametrize(
    "words", [{"sequences": 2}, {"continues": "resp_1"}, {"is_single_engine": True}, {"api": Api.SCORE}]
)
def test_some_requests_belong_on_one_engine(words: dict[str, Any]) -> None:
    """Several answers to one prompt, a stored response, what looks at its prompt, and what decodes nothing."""
    router = split_fleet(1, 1)
    busy(router, "http://d1", 60)
    assert place(router, long(**words)).prefill is None


def test_prefill_pods_answer_as_a_last_resort_only() -> None:
    """Alone where nobody else is ready, or nobody else is left; and that is said."""
    router = split_fleet(1, 1)
    assert place(router, long()).engine.pod == "http://d1"
    last = place(router, long(), avoid="http://d1")
    assert last.engine.pod == "http://p0"
    assert last.fallback is PairingFallback.NO_DECODE_POD
    assert last.prefill is None


def test_an_engine_that_does_both_pairs_with_any_other_but_itself() -> None:
    """Roles are soft where nobody has said them; a pod is nobody's partner of its own."""
    router = Router(routings()["warm"], exact_sizes=True)
    for number in range(2):
        put(router, f"http://{number}", NIXL)
        busy(router, f"http://{number}", 120 if number else 1)
    busy(router, "http://0", 119)
    seen = place(router, long())
    assert seen.prefill is None or seen.prefill.engine.pod != seen.engine.pod


def test_the_nearest_of_equals_prefills() -> None:
    """Of two that are as free as each other, the one whose link is the faster."""
    router = split_fleet(0, 1, replace(NIXL, host="a", zone="z"))
    busy(router, "http://d0", 60)
    for url, host in (("http://far", "c"), ("http://near", "a")):
        put(router, url, replace(NIXL, role=Role.PREFILL, host=host, zone="z" if host == "a" else "y"))
    placement = place(router, long())
    assert placement.prefill is not None
    assert placement.prefill.engine.pod == "http://near"
    assert placement.prefill.transfer.link is Link.HOST


def test_a_link_that_stalled_is_distrusted_for_a_while() -> None:
    """Another engine prefills until it has been forgotten."""
    router = split_fleet(2, 1)
    busy(router, "http://d2", 60)
    first = place(router, long())
    assert first.prefill is not None
    first.prefill.prefill_done(None, 1.4)
    first.prefill.transfer_stalled(11.4)
    first.release(11.4)
    second = place(router, long(17_000), now_s=12.0)
    assert second.prefill is None or second.prefill.engine.pod != first.prefill.engine.pod


def test_what_transfers_take_is_learned() -> None:
    """From real first tokens: what came ten times later than foretold is foretold later."""
    router = split_fleet(1, 1)
    busy(router, "http://d1", 100)
    foretold: list[float] = []
    for number in range(8):
        placement = place(router, long(16_000 + 1000 * number), now_s=100.0 * number)
        if (side := placement.prefill) is None:
            break
        foretold.append(side.transfer.seconds)
        side.prefill_done(None, 100.0 * number + 1.4)
        placement.first_token(100.0 * number + 1.4 + 10 * side.transfer.prior_s + side.transfer.step_s)
        placement.release(100.0 * number + 5)
    assert len(foretold) > 2
    assert foretold[-1] > 2 * foretold[0]


@pytest.mark.parametrize(
    ("reported", "configured", "each"), [(None, None, DEFAULT_KV_BYTES), (4096, None, 4096), (4096, 8.0, 8)]
)
def test_what_is_moved_is_as_configured_or_as_pods_report(
    reported: int | None, configured: float | None, each: float
) -> None:
    """Bytes of KV per token: the configuration's word first, then the pods', else a usual model's."""
    router = split_fleet(facts=replace(NIXL, kv_bytes_per_token=reported))
    if configured is not None:
        router.pairing.kv_bytes[MODEL] = configured
    for url in ("http://d2", "http://d3"):
        busy(router, url, 60)
    placement = place(router, long())
    assert placement.prefill is not None
    moved_s = placement.prefill.transfer.prior_s - FIXED_S
    assert moved_s == pytest.approx(16_000 * each / BYTES_PER_S[Link.FAR])


def test_foresight_is_what_placing_does_and_charges_nothing() -> None:
    """The same engines and seconds, and a ledger as it was."""
    router = split_fleet()
    for url in ("http://d2", "http://d3"):
        busy(router, url, 60)
    before = list(router.ledger.kv_tokens)
    seen = router.estimate(long(), avoid=frozenset(), now_s=0.0)
    assert router.ledger.kv_tokens == before
    placement = place(router, long())
    assert placement.prefill is not None
    assert seen.engine is placement.engine
    assert seen.prefill is placement.prefill.engine
    assert seen.ttft_s == placement.predicted.ttft_s


def test_a_receipt_shows_pairs_next_to_single_engines() -> None:
    """Each candidate by name, with the hand-over among its seconds."""
    router = split_fleet(1, 1)
    busy(router, "http://d1", 60)
    shown = list(place(router, long()).top_candidates())
    assert [each.prefill_engine for each in shown] == ["http://p0", None]
    assert shown[0].scores_s["transfer"] > 0
    assert abs(sum(shown[0].scores_s.values()) - shown[0].total_s) < 1e-3


@pytest.mark.parametrize(
    ("gate", "queued_s", "sequences", "is_pair"),
    [
        (None, 60.0, 0, False),
        (RoleGate(), 60.0, 0, True),
        (RoleGate(RoleTerms()), 60.0, 0, False),
        (RoleGate(RoleTerms(ttft_s=10.0)), 5.0, 0, True),
        (RoleGate(RoleTerms()), 60.0, 8, True),
    ],
    ids=["no roles", "fixed roles", "pairs too late", "pairs in time", "streams bear no stall"],
)
def test_roles_that_are_kept(gate: RoleGate | None, queued_s: float, sequences: int, is_pair: bool) -> None:
    """Behind a queue of prefill a decode engine would be sooner: it computes where the pair would be late, and its
    streams bear that.
    """
    router = split_fleet(1, 1, gate=gate)
    engine = router.fleet.engine("http://p0")
    assert engine is not None
    router.ledger.charge(engine.slot, prefill_tokens=400_000, prefill_s=queued_s, kv_tokens=9, sequences=1, now_s=0.0)
    if sequences:
        busy(router, "http://d1", sequences)
    assert (place(router, long()).prefill is not None) == is_pair


def test_transfers_under_way_queue_at_their_cards() -> None:
    """KV on its way to both decode engines delays that of a third prompt; KV that is not computed yet does not."""
    router = split_fleet(3, 2, replace(NIXL, kv_bytes_per_token=10_000_000, nic_gbit_s=400))
    for url in ("http://d3", "http://d4"):
        busy(router, url, 400)
    first, second = place(router, cold(0)), place(router, cold(1))
    assert first.prefill is not None
    assert second.prefill is not None
    assert first.prefill.transfer.wait_s == second.prefill.transfer.wait_s == 0.0
    first.prefill.prefill_done(None, 1.5)
    other = place(router, cold(2), now_s=1.5)
    assert other.engine is not first.engine
    assert other.prefill is not None
    assert other.prefill.transfer.wait_s == 0.0
    second.prefill.prefill_done(None, 1.5)
    other.prefill.prefill_done(None, 1.5)
    third = place(router, cold(3), now_s=1.5)
    assert third.prefill is not None
    assert third.prefill.transfer.wait_s > 0.1
    for one in (first, second, other, third):
        one.release(9.0)
    assert not router.transfers.under_way


def cold(number: int) -> Request:
    """A long request whose prompt no engine holds."""
    return structs.replace(
        long(), id=f"other-{number}", prompt=Prompt((number + 7_000,), range(16_000, 16_001), 16_000)
    )
