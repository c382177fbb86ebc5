"""Limits while policies are reloaded at random: what is used keeps to the limit in force, but for a stated bound.

The bound of docs/limits.md: nothing is granted beyond the limit in force. Where more is used than that (a lower limit
has just come, a whole answer took more than its reserve) nothing is granted at all, and streams that began under
another limit end at their next look.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.limits.accounts import CHECK_EVENTS, RequestMeter
from gateway.limits.rate_limit_response import QuotaExceeded
from routing.decision.router import Router
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tenancy.limits.account_usage import LimitUsage, SlidingWindowCounter
from tenancy.limits.usage import LimitKind
from tenancy.tenants import Caller, Quota, Tenant
from tests.gateway.limits.making import Hand, quotas_of

LIMITS = st.sampled_from([None, 100, 150, 400, 2_000])


@dataclass(eq=False)
class Stream:
    """One that is under way, as its client sees it."""

    tab: RequestMeter
    beyond: int = 0
    """Tokens that it got one after the other while more was used than the limit in force."""
    got: int = 0


def owed(meter: LimitUsage) -> float:
    assert isinstance(meter.counter, SlidingWindowCounter)
    return meter.counter.owed


class Reloads(RuleBasedStateMachine):
    """Two users of one tenant; both draw on the tenant's account."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Hand()
        self.quotas = quotas_of(Router(routings()["round-robin"]), self.clock, expected=200.0)
        self.streams: list[Stream] = []
        self.wholes: list[RequestMeter] = []
        self.callers: list[Caller] = []

    @initialize(output=LIMITS)
    def a_policy_is_read(self, output: int | None) -> None:
        self.reload(output, None)

    @rule(output=LIMITS, parallel=st.sampled_from([None, None, 1, 3]))
    def a_policy_is_reloaded(self, output: int | None, parallel: int | None) -> None:
        self.reload(output, parallel)

    def reload(self, output: int | None, parallel: int | None) -> None:
        quota = Quota(requests_per_min=10_000, output_tokens_per_min=output, parallel_requests=parallel)
        self.tenant = Tenant("search", quota=quota)
        self.quotas.apply_policy({"search": self.tenant})
        # Callers whose head came earlier are still there.
        self.callers = [*self.callers[-2:], self.tenant.caller()]

    @rule(pause_s=st.sampled_from([0.2, 3.0, 20.0, 61.0]))
    def time_passes(self, pause_s: float) -> None:
        self.clock.now_s += pause_s

    def open(self, caller: int, **fields: object) -> RequestMeter | None:
        request = Request(**{"id": "r", "api": Api.CHAT, "model": "tiny"} | fields)  # type: ignore[arg-type]
        coming = self.quotas.reserve(request, self.callers[caller % len(self.callers)])
        try:
            coming.send(None)
        except StopIteration as reported:
            tab: RequestMeter = reported.value
        except QuotaExceeded:
            return None
        limit = self.tenant.quota.parallel_requests
        assert limit is None or len(self.streams) + len(self.wholes) < limit
        self.check_grant()
        return tab

    @property
    def meter(self) -> LimitUsage | None:
        """The limit in force on output, where there is one."""
        book = self.quotas.accounts.find("search")
        return book.limit_usages.get(LimitKind.OUTPUT) if book is not None else None

    def check_grant(self) -> None:
        """Something has just been granted: all that is used, granted or owed, is within the limit in force."""
        meter = self.meter
        assert (meter is None) == (self.tenant.quota.output_tokens_per_min is None)
        if meter is not None:
            assert meter.limit == self.tenant.quota.output_tokens_per_min
            assert meter.counter.used <= meter.limit

    @rule(caller=st.integers(0, 2))
    def a_stream_comes(self, caller: int) -> None:
        if (tab := self.open(caller, stream=True)) is not None:
            self.streams.append(Stream(tab))

    @rule(caller=st.integers(0, 2), most=st.sampled_from([None, 50, 5_000]))
    def a_whole_answer_is_asked_for(self, caller: int, most: int | None) -> None:
        if (tab := self.open(caller, max_tokens=most)) is not None:
            self.wholes.append(tab)

    @rule(at=st.integers(0, 4), tokens=st.integers(1, 200))
    def a_stream_goes_on(self, at: int, tokens: int) -> None:
        if at >= len(self.streams):
            return
        stream = self.streams[at]
        for _ in range(tokens):
            held = stream.tab.held_tokens
            stream.got += 1
            is_over = stream.tab.count_events(1) == 0
            if stream.tab.held_tokens > held:
                self.check_grant()
            meter = self.meter
            is_beyond = meter is not None and meter.counter.used > meter.limit and not owed(meter)
            stream.beyond = stream.beyond + 1 if is_beyond else 0
            assert stream.beyond <= CHECK_EVENTS
            if is_over:
                self.end(stream, reported=False)
                return

    @rule(at=st.integers(0, 4), reported=st.booleans())
    def a_stream_ends(self, at: int, reported: bool) -> None:
        if at < len(self.streams):
            self.end(self.streams[at], reported=reported)

    def end(self, stream: Stream, *, reported: bool) -> None:
        self.streams.remove(stream)
        stream.tab.settle(Usage(5, stream.got) if reported else None, "tiny")
        stream.tab.close(was_carried=True, was_served=True)

    @rule(at=st.integers(0, 4), part=st.floats(0.0, 1.0))
    def a_whole_answer_ends(self, at: int, part: float) -> None:
        if at >= len(self.wholes):
            return
        complete = self.wholes.pop(at)
        wanted = complete.request.max_tokens or 10_000
        tokens = max(1, int(part * min(wanted, complete.max_tokens or wanted)))
        complete.settle(Usage(5, tokens), "tiny")
        complete.close(was_carried=True, was_served=True)

    @invariant()
    def what_runs_is_held(self) -> None:
        book = self.quotas.accounts.find("search")
        if book is None:
            return
        running = len(self.streams) + len(self.wholes)
        assert book.open == running
        parallel = book.limit_usages.get(LimitKind.PARALLEL)
        assert parallel is None or parallel.counter.used == running

    def teardown(self) -> None:
        """When all have ended and all is paid, nothing is left."""
        for stream in list(self.streams):
            self.end(stream, reported=True)
        for complete in self.wholes:
            complete.close(was_carried=False, was_served=False)
        book = self.quotas.accounts.find("search")
        if book is not None:
            book.advance(self.clock.now_s + 86_400)
            assert book.is_idle


TestReloads = Reloads.TestCase
TestReloads.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
