"""Whatever becomes of either leg of a pair, the answer comes another way, its receipt says why, and nothing is kept."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.attempt import AttemptResult, AttemptStatus, PrefillResult
from routing.eligible import PairingFallback
from simulator.clock import run_virtually
from tests.gateway.pairs.played import ANSWERED, GOOD, NEVER_S, TOLD, Ground, PairCarrier, Part, led

ANSWERS = Part(ANSWERED, token_after_s=0.05)


@pytest.mark.parametrize("connector", ["NixlConnector", "NixlPushConnector", "MooncakeConnector", "ExampleConnector"])
def test_both_legs_are_carried_under_one_request_id(connector: str) -> None:
    """Whoever matches halves by it finds them; the decode leg is told what the connector wants."""
    carrier, stage = led(PairCarrier(), lambda: Ground(connector=connector))
    assert [what for what, _ in carrier.legs] == ["prefill", "decode"]
    (attempt,) = stage.attempts
    assert attempt.prefill_engine in {"http://p0", "http://p1"}
    assert attempt.engine in {"http://d0", "http://d1"}
    assert attempt.fallback_reason is None
    assert carrier.orders[0].request_id.startswith("r-")
    assert (carrier.handed == [b""]) == (connector == "ExampleConnector")


@pytest.mark.parametrize(
    "end",
    [
        AttemptStatus.UNREACHABLE,
        AttemptStatus.CONNECTION_RESET,
        AttemptStatus.UPSTREAM_5XX,
        AttemptStatus.UPSTREAM_BUSY,
        AttemptStatus.INVALID_RESPONSE,
    ],
)
def test_a_prefill_that_fails_is_done_by_another_pod(end: AttemptStatus) -> None:
    """The pod that failed is blamed, the decode pod is not."""
    carrier, stage = led(PairCarrier(prefills=[Part(PrefillResult(end)), Part(GOOD)]))
    first, second = stage.attempts
    assert first.fallback_reason is PairingFallback.PREFILL_FAILED
    assert second.result == "ok"
    assert second.prefill_engine not in {None, first.prefill_engine}
    assert (first.prefill_engine, end) in stage.ends
    assert all(ended is AttemptStatus.OK for pod, ended in stage.ends if pod.startswith("http://d"))
    assert not carrier.refusals


def test_when_all_prefills_fail_the_answer_is_prefilled_where_it_is_made() -> None:
    """After two pods the third way is the plain one."""
    carrier, stage = led(
        PairCarrier(prefills=[Part(PrefillResult(AttemptStatus.CONNECTION_RESET))]), lambda: Ground(prefill=4)
    )
    assert [what for what, _ in carrier.legs] == ["prefill", "prefill", "decode"]
    assert stage.attempts[-1].prefill_engine is None
    assert stage.attempts[-1].result == "ok"
    assert carrier.handed == [None]


def test_a_prefill_that_hangs_is_given_up() -> None:
    """Far beyond what was foretold, and well within the request's deadline."""
    _, stage = led(PairCarrier(prefills=[Part(GOOD, NEVER_S), Part(GOOD)]))
    assert stage.attempts[0].fallback_reason is PairingFallback.PREFILL_SLOW
    assert stage.attempts[-1].result == "ok"
    assert stage.outcomes[0].duration_s < 60


@pytest.mark.parametrize("missing", ["remote_request_id", "remote_engine_id", "remote_host", "remote_port"])
def test_poison_is_not_passed_on(missing: str) -> None:
    """Parameters that would kill the decode engine reach no engine."""
    poison = {name: value for name, value in TOLD.items() if name != missing}
    carrier, stage = led(PairCarrier(prefills=[Part(PrefillResult(AttemptStatus.OK, 200, poison))]))
    assert stage.attempts[0].fallback_reason is PairingFallback.UNFIT_PARAMS
    assert carrier.handed == [None]


def test_kv_that_does_not_come_is_given_up_and_no_pod_is_blamed() -> None:
    """The request then begins from scratch on one pod: who has lost so much time is not to lose it again."""
    carrier, stage = led(PairCarrier(decodes=[Part(ANSWERED, NEVER_S), ANSWERS]))
    first, second = stage.attempts
    assert first.fallback_reason is PairingFallback.TRANSFER_STALLED
    assert first.result == AttemptStatus.KV_TRANSFER_TIMEOUT
    assert second.prefill_engine is None
    assert second.result == "ok"
    assert all(ended is AttemptStatus.OK for _, ended in stage.ends)
    assert carrier.handed[1] is None
    assert stage.outcomes[0].duration_s < 60


def test_an_answer_in_one_piece_may_take_its_time() -> None:
    """Its first token is not seen: what is awaited is all of it."""
    _, stage = led(PairCarrier(decodes=[Part(ANSWERED, 9.0)]), stream=False)
    (attempt,) = stage.attempts
    assert attempt.fallback_reason is None


def test_a_decode_pod_that_dies_is_replaced_in_a_pair() -> None:
    """The prompt is warm where it was prefilled, so that pairing again costs next to nothing."""
    _, stage = led(PairCarrier(decodes=[Part(AttemptResult(AttemptStatus.CONNECTION_RESET)), ANSWERS]))
    first, second = stage.attempts
    assert first.fallback_reason is PairingFallback.DECODE_FAILED
    assert (first.engine, AttemptStatus.CONNECTION_RESET) in stage.ends
    assert second.engine != first.engine
    assert second.prefill_engine == first.prefill_engine
    assert second.result == "ok"


def test_a_decode_pod_that_breaks_over_the_kv_is_called_without_it() -> None:
    """`kv_load_failure_policy: fail` says 500 where the KV cannot be had: that is nobody's breaker's affair."""
    _, stage = led(PairCarrier(decodes=[Part(AttemptResult(AttemptStatus.UPSTREAM_5XX, 500)), ANSWERS]))
    assert stage.attempts[0].fallback_reason is PairingFallback.TRANSFER_FAILED
    assert stage.attempts[1].prefill_engine is None
    assert all(ended is AttemptStatus.OK for _, ended in stage.ends)


def test_with_no_prefill_pod_the_decode_pod_does_it_all_and_says_so() -> None:
    """An explicit fallback on the receipt; nothing is held against anybody."""
    _, stage = led(PairCarrier(), lambda: Ground(prefill=0))
    (attempt,) = stage.attempts
    assert attempt.prefill_engine is None
    assert attempt.fallback_reason is PairingFallback.NO_PREFILL_POD


def test_an_unreachable_decode_pod_costs_an_attempt_like_any_other() -> None:
    """What cannot be served is refused in the end."""
    carrier, stage = led(PairCarrier(decodes=[Part(AttemptResult(AttemptStatus.UNREACHABLE))]))
    assert len(carrier.refusals) == 1
    assert len(stage.attempts) <= 5


FAILURES = [end for end in AttemptStatus if end not in (AttemptStatus.OK, AttemptStatus.ESCALATED)]
WAITS = st.sampled_from([0.0, 0.1, 1.0, 20.0, NEVER_S])
PREFILLS = st.lists(
    st.builds(
        Part,
        st.sampled_from(
            [
                GOOD,
                *(PrefillResult(end) for end in AttemptStatus if end is not AttemptStatus.OK),
                PrefillResult(AttemptStatus.OK, 400),
            ]
        ),
        WAITS,
    ),
    min_size=1,
    max_size=3,
)
ENDS = st.sampled_from([ANSWERED, *map(AttemptResult, FAILURES)])
DECODES = st.lists(st.builds(Part, ENDS, WAITS, st.none() | WAITS), min_size=1, max_size=3)


@dataclass(frozen=True)
class Visit:
    """A client: when it comes, when it goes before its time, how its legs go."""

    comes_s: float
    stays_s: float | None
    prefills: list[Part]
    decodes: list[Part]
    stream: bool


STAYS = st.sampled_from([0.0, 0.1, 0.15, 1.0, 5.0])
VISITS = st.lists(
    st.builds(
        Visit,
        st.sampled_from([0.0, 0.1, 1.0]),
        st.none() | STAYS,
        PREFILLS,
        DECODES,
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
LOSSES = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from(["p0", "p1", "d0", "d1"])), max_size=3)


@given(
    visits=VISITS,
    losses=LOSSES,
    connector=st.sampled_from(["NixlConnector", "MooncakeConnector", "ExampleConnector"]),
)
def test_whatever_happens_both_ledgers_return_to_zero(
    visits: list[Visit], losses: list[tuple[float, str]], connector: str
) -> None:
    """Clients leave, legs fail and stall, pods are removed, all at any moment: no leg goes on and no charge stays."""

    async def play() -> None:
        stage = Ground(connector=connector)
        carriers = [PairCarrier(visit.prefills, visit.decodes) for visit in visits]
        async with asyncio.TaskGroup() as group:
            for visit, carrier in zip(visits, carriers, strict=True):
                group.create_task(_visit(stage, visit, carrier))
            for after_s, name in losses:
                group.create_task(_lose(stage, after_s, name))
        assert len(stage.outcomes) == len(visits)
        assert stage.is_empty()
        assert not any(carrier.under_way for carrier in carriers)

    run_virtually(play())


async def _visit(stage: Ground, visit: Visit, carrier: PairCarrier) -> None:
    await asyncio.sleep(visit.comes_s)
    if visit.stays_s is None:
        await stage.lead(carrier, stream=visit.stream)
        return
    task = asyncio.get_running_loop().create_task(stage.lead(carrier, stream=visit.stream))
    await asyncio.wait({task}, timeout=visit.stays_s)
    task.cancel()
    await asyncio.wait({task})


async def _lose(stage: Ground, after_s: float, name: str) -> None:
    await asyncio.sleep(after_s)
    stage.router.remove_pod(f"http://{name}")
