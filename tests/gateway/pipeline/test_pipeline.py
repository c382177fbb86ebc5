"""The spine: whatever is cancelled or dies whenever, what was charged is given back, and every request ends once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.limits.accounts import RequestMeter
from gateway.pipeline.attempt import AttemptLimits, AttemptResult, AttemptStatus, PrefillRequest, PrefillResult
from gateway.pipeline.pipeline import RequestPipeline
from gateway.pipeline.record import CLIENT_GONE_STATUS, Outcome
from gateway.runtime.trace_context import RequestTrace
from routing.blocks import cut_prompt
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import Reason, RequestRejected
from routing.request import Api, Request, Usage
from scorers.registry import routings
from simulator.clock import run_virtually
from tenancy.tenants import Caller, Tenant

MODEL = "tiny"
PODS = ("http://a", "http://b", "http://c", "http://d")
GOLD = Caller(Tenant("gold"))
PROMPT = cut_prompt(b"once upon a time " * 100, 7)


@dataclass(frozen=True)
class Play:
    """How one attempt goes: after so long a first token or none, after so long its end."""

    end: AttemptStatus = AttemptStatus.OK
    token_after_s: float | None = 0.0
    end_after_s: float = 0.0
    started: bool = False
    was_paused: bool = False
    tokens: int = 10

    @property
    def leg(self) -> AttemptResult:
        started = self.started or self.end is AttemptStatus.OK
        status = 200 if self.end is AttemptStatus.OK else 0
        usage = Usage(400, self.tokens, 100) if self.end is AttemptStatus.OK else None
        result = AttemptResult(self.end, status, started=started, usage=usage, answer=b" the end", response_id="resp_1")
        return replace(result, was_paused=self.was_paused)


@dataclass
class PlayedCarrier:
    """A shell that does as it is told, the last play again and again."""

    plays: Sequence[Play]
    pods: list[str] = field(default_factory=list)
    refusals: list[RequestRejected] = field(default_factory=list)
    deadlines_s: list[float] = field(default_factory=list)

    async def run_attempt(self, placement: Placement, first_byte_by_s: float) -> AttemptResult:
        play = self.plays[min(len(self.pods), len(self.plays) - 1)]
        self.pods.append(placement.engine.pod)
        self.deadlines_s.append(first_byte_by_s)
        if play.token_after_s is not None:
            await asyncio.sleep(play.token_after_s)
            placement.first_token(asyncio.get_running_loop().time())
        await asyncio.sleep(play.end_after_s)
        return play.leg

    async def prefill(self, placement: Placement, order: PrefillRequest, by_s: float) -> PrefillResult | None:
        return None

    def open_meter(self, tab: RequestMeter) -> None:
        self.tab = tab

    def reject(self, rejection: RequestRejected) -> None:
        self.refusals.append(rejection)


class Stage:
    """A router with pods, and a spine over it."""

    def __init__(self, patience: AttemptLimits | None = None, pods: Sequence[str] = PODS) -> None:
        self.router = Router(routings()["warm"])
        self.outcomes: list[Outcome] = []
        self.ends: list[tuple[str, AttemptStatus]] = []
        for url in pods:
            self.router.put_pod(Pod(url, PodState.READY, frozenset({MODEL})))
            self.router.reshape_pod(url, [EngineShape(kv_tokens=10_000)])
        self.pipeline = RequestPipeline(
            self.router,
            health=self.take_end,
            observers=[self.outcomes.append],
            clock=lambda: asyncio.get_running_loop().time(),
            wall_clock=lambda: 1.8e9,
            draw=lambda: 0.5,
            limits=patience or AttemptLimits(),
        )

    def take_end(self, pod: str, end: AttemptStatus) -> bool | None:
        """Told of every attempt."""
        self.ends.append((pod, end))
        return None

    async def lead(self, *plays: Play, model: str = MODEL, stream: bool = True) -> PlayedCarrier:
        carrier = PlayedCarrier(plays)
        request = Request("r", Api.CHAT, model, PROMPT, stream=stream)
        await self.pipeline.handle_request(request, carrier, caller=GOLD, trace=TRACE)
        return carrier


TRACE = RequestTrace("01" * 16, "02" * 8)

WAITS = st.sampled_from([0.0, 0.0, 0.5, 1.0])
PLAYS = st.builds(
    Play,
    st.sampled_from([end for end in AttemptStatus if end is not AttemptStatus.ESCALATED]),
    st.none() | WAITS,
    WAITS,
    st.booleans(),
)


@dataclass(frozen=True)
class Visit:
    """A client: when it comes, when it goes before its time, how its attempts go."""

    comes_s: float
    stays_s: float | None
    plays: tuple[Play, ...]
    model: str = MODEL


VISITS = st.lists(
    st.builds(
        Visit,
        WAITS,
        st.none() | WAITS,
        st.lists(PLAYS, min_size=1, max_size=4).map(tuple),
        st.sampled_from([MODEL, MODEL, MODEL, "unknown"]),
    ),
    min_size=1,
    max_size=8,
)
LOSSES = st.lists(st.tuples(WAITS, st.sampled_from(PODS)), max_size=4)


@given(visits=VISITS, losses=LOSSES)
def test_whatever_happens_the_ledger_returns_to_zero(visits: list[Visit], losses: list[tuple[float, str]]) -> None:
    """Clients leave, pods fail and are removed, all at any moment: every task ends, every outcome is told once."""

    async def play() -> Stage:
        stage = Stage()
        tasks = [asyncio.create_task(visit_of(stage, visit)) for visit in visits]
        for wait_s, url in losses:
            await asyncio.sleep(wait_s)
            stage.router.remove_pod(url)
        await asyncio.wait(tasks)
        for task in tasks:
            assert task.cancelled() or task.exception() is None
        return stage

    stage = run_virtually(play())
    assert stage.router.ledger.is_empty()
    assert len(stage.outcomes) <= len(visits)
    for outcome in stage.outcomes:
        assert outcome.status in {200, 403, 404, 429, 502, 503, 504, CLIENT_GONE_STATUS}
        assert (outcome.reason is None) is (outcome.status in {200, CLIENT_GONE_STATUS})


async def visit_of(stage: Stage, visit: Visit) -> None:
    await asyncio.sleep(visit.comes_s)
    carrier = PlayedCarrier(visit.plays)
    request = Request("r", Api.CHAT, visit.model, PROMPT, stream=True)
    task = asyncio.create_task(stage.pipeline.handle_request(request, carrier))
    if visit.stays_s is not None:
        asyncio.get_running_loop().call_later(visit.stays_s, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
        answered = len(carrier.refusals) == 0
        assert len(carrier.refusals) <= 1
        assert len(set(carrier.pods)) == len(carrier.pods)
        assert not answered or stage.outcomes


def led(*plays: Play, patience: AttemptLimits | None = None, pods: Sequence[str] = PODS) -> tuple[PlayedCarrier, Stage]:
    async def play() -> tuple[PlayedCarrier, Stage]:
        stage = Stage(patience, pods)
        return await stage.lead(*plays), stage

    carrier, stage = run_virtually(play())
    assert stage.router.ledger.is_empty()
    return carrier, stage


def failing(end: AttemptStatus, *, started: bool = False) -> Play:
    return Play(end, token_after_s=None, started=started)


@pytest.mark.parametrize(
    "end",
    [
        AttemptStatus.UNREACHABLE,
        AttemptStatus.CONNECTION_RESET,
        AttemptStatus.INVALID_RESPONSE,
        AttemptStatus.UPSTREAM_BUSY,
        AttemptStatus.UPSTREAM_5XX,
    ],
)
def test_another_pod_is_called_before_the_first_byte(end: AttemptStatus) -> None:
    """The client sees the answer only; the receipt has both attempts."""
    carrier, stage = led(failing(end), Play())
    assert carrier.refusals == []
    assert len(set(carrier.pods)) == 2
    (outcome,) = stage.outcomes
    assert (outcome.status, outcome.reason) == (200, None)
    assert [attempt.result for attempt in outcome.attempts] == [end, "ok"]
    assert stage.ends == [(carrier.pods[0], end), (carrier.pods[1], AttemptStatus.OK)]


def test_an_answer_that_has_started_is_exclusive() -> None:
    """After the first byte the client is told of the loss."""
    carrier, stage = led(Play(AttemptStatus.CONNECTION_RESET, started=True), Play())
    assert len(carrier.pods) == 1
    assert [rejection.reason for rejection in carrier.refusals] == [Reason.POD_LOST]
    assert stage.outcomes[0].status == 502


@pytest.mark.parametrize(
    ("end", "attempts"),
    [(AttemptStatus.CONNECTION_RESET, 3), (AttemptStatus.UPSTREAM_BUSY, 3), (AttemptStatus.UPSTREAM_5XX, 3)],
)
def test_attempts_are_bounded(end: AttemptStatus, attempts: int) -> None:
    """A request that breaks pods does not get the whole fleet."""
    carrier, _ = led(failing(end))
    assert len(carrier.pods) == attempts
    assert len(carrier.refusals) == 1


def test_attempts_end_with_the_deadline() -> None:
    """All attempts share one deadline, counted from the request's arrival."""
    slow = Play(AttemptStatus.TIMEOUT, token_after_s=None, end_after_s=5.0)
    carrier, stage = led(slow, patience=AttemptLimits(deadline_s=8.0))
    assert len(carrier.pods) == 2
    assert len(set(carrier.deadlines_s)) == 1
    assert [rejection.reason for rejection in carrier.refusals] == [Reason.POD_TIMEOUT]
    assert stage.outcomes[0].duration_s == 10.0


def test_when_all_pods_have_failed_the_last_says_why() -> None:
    """What the last pod said tells more than that nobody is left."""
    carrier, stage = led(failing(AttemptStatus.UPSTREAM_BUSY), pods=PODS[:1])
    assert [rejection.reason for rejection in carrier.refusals] == [Reason.POD_BUSY]
    assert stage.outcomes[0].reason is Reason.POD_BUSY


@pytest.mark.parametrize(("model", "reason"), [("nope", Reason.UNKNOWN_MODEL), (MODEL, Reason.NO_POD_READY)])
def test_what_cannot_be_placed_is_rejected(model: str, reason: Reason) -> None:
    """Nobody is asked, the client and the witnesses are told once."""

    async def play() -> tuple[PlayedCarrier, Stage]:
        stage = Stage()
        for url in PODS:
            stage.router.put_pod(Pod(url, PodState.DRAINING, frozenset({MODEL})))
        return await stage.lead(Play(), model=model), stage

    carrier, stage = run_virtually(play())
    assert carrier.pods == []
    assert [rejection.reason for rejection in carrier.refusals] == [reason]
    assert [outcome.reason for outcome in stage.outcomes] == [reason]


@pytest.mark.parametrize("leaves_s", [0.0, 0.5, 1.5])
def test_a_client_that_goes_is_reported_to_the_observers_only(leaves_s: float) -> None:
    """Nothing is refused, no pod is blamed, and everything is given back, before the first token and after it."""

    async def play() -> tuple[Stage, asyncio.Task[PlayedCarrier]]:
        stage = Stage()
        task = asyncio.create_task(stage.lead(Play(token_after_s=1.0, end_after_s=1.0)))
        await asyncio.sleep(leaves_s)
        task.cancel()
        await asyncio.wait([task])
        return stage, task

    stage, task = run_virtually(play())
    assert task.cancelled()
    assert stage.ends == []
    assert stage.router.ledger.is_empty()
    (outcome,) = stage.outcomes
    assert (outcome.status, outcome.reason, outcome.error) == (CLIENT_GONE_STATUS, None, "client gone")
    assert (outcome.ttft_s is None) is (leaves_s < 1.0)


def test_the_outcome_reports_times_tenant_and_trace() -> None:
    """Times are from arrival; what the pod said stands beside them."""
    carrier, stage = led(Play(token_after_s=2.0, end_after_s=3.0))
    assert carrier.refusals == []
    (outcome,) = stage.outcomes
    assert (outcome.ttft_s, outcome.decode_s, outcome.duration_s) == (2.0, 3.0, 5.0)
    assert (outcome.tenant, outcome.trace_id, outcome.usage) == ("gold", "01" * 16, Usage(400, 10, 100))
    assert outcome.trace is TRACE
    assert TRACE.attempt == 1
    (attempt,) = outcome.attempts
    assert (attempt.model, attempt.start_s, attempt.duration_s) == (MODEL, 0.0, 5.0)
    assert outcome.at_s == 1.8e9


def test_clients_that_read_slowly_make_no_engine_slow() -> None:
    """Their answers take minutes and teach no step time; the same pace is learned of clients that read."""

    async def play(*, was_paused: bool) -> list[float]:
        stage = Stage()
        for _ in range(20):
            await stage.lead(Play(token_after_s=0.1, end_after_s=300.0, was_paused=was_paused, tokens=1_000))
        assert all((outcome.decode_s is None) is was_paused for outcome in stage.outcomes)
        return list(stage.router.costs.step_base_s)

    assert run_virtually(play(was_paused=True)) == list(Stage().router.costs.step_base_s)
    assert max(run_virtually(play(was_paused=False))) > 2 * max(Stage().router.costs.step_base_s)


def test_what_is_answered_is_learned() -> None:
    """The next request with the same prompt goes to the pod that now holds it."""

    async def play() -> list[str]:
        stage = Stage()
        first = await stage.lead(Play(token_after_s=1.0))
        second = await stage.lead(Play(token_after_s=1.0))
        return first.pods + second.pods

    first, second = run_virtually(play())
    assert first == second
