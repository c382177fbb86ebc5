"""Reservations, whatever happens in whatever order: limits hold in any sixty seconds, and nothing leaks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tenancy.limits.account_usage import AccountUsage, Reservation, UsageStore, reserve
from tenancy.limits.usage import NO_USAGE, LimitKind, RequestUsage, TokenPrices
from tenancy.tenants import Account, Quota

NOW_S = 1.8e9
SPAN_S = 60.0
RATES = TokenPrices(1.0, 0.5, 2.0)
TENANT = Account("a", Quota(requests_per_min=12, tokens_per_min=400, parallel_requests=6, budget=3_000))
USER = Account("a/user/b", Quota(output_tokens_per_min=150, uncached_tokens_per_min=200))


class Accounts(RuleBasedStateMachine):
    """Requests come, stream, end and are aborted; what each was granted when is written down beside."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = NOW_S
        self.books: list[AccountUsage] = UsageStore().of([TENANT, USER], self.now_s)
        self.open: list[Reservation] = []
        self.closed: list[Reservation] = []
        self.granted: list[tuple[float, LimitKind, float, Reservation]] = []

    def note(self, reservation: Reservation, before: RequestUsage) -> None:
        after = reservation.held
        for kind, amount in {
            LimitKind.REQUESTS: after.requests - before.requests,
            LimitKind.TOKENS: after.input_tokens + after.output_tokens - before.input_tokens - before.output_tokens,
            LimitKind.OUTPUT: after.output_tokens - before.output_tokens,
            LimitKind.UNCACHED: after.input_tokens - before.input_tokens - after.cached_tokens + before.cached_tokens,
        }.items():
            self.granted.append((self.now_s, kind, amount, reservation))

    def take_back(self, reservation: Reservation, used: RequestUsage) -> None:
        """What was not used is taken off the latest grants, which is what makes room soonest."""
        held, self.granted = self.granted, []
        left: dict[LimitKind, float] = {
            LimitKind.REQUESTS: used.requests,
            LimitKind.TOKENS: used.input_tokens + used.output_tokens,
            LimitKind.OUTPUT: used.output_tokens,
            LimitKind.UNCACHED: used.input_tokens - used.cached_tokens,
        }
        for at_s, kind, amount, owner in held:
            kept: float = amount
            if owner is reservation:
                kept = min(amount, left[kind])
                left[kind] -= kept
            self.granted.append((at_s, kind, kept, owner))

    @rule(pause_s=st.sampled_from([0.0, 0.3, 2.0, 17.0, 61.0]))
    def time_passes(self, pause_s: float) -> None:
        self.now_s += pause_s

    @rule(input_tokens=st.integers(0, 60), cached=st.integers(0, 60), output=st.integers(0, 60))
    def a_request_comes(self, input_tokens: int, cached: int, output: int) -> None:
        use = RequestUsage(1, input_tokens, min(cached, input_tokens), output, RATES)
        found = reserve(self.books, use, self.now_s)
        if isinstance(found, Reservation):
            self.open.append(found)
            self.note(found, NO_USAGE)

    @rule(at=st.integers(0, 5), tokens=st.integers(1, 50))
    def a_stream_grows(self, at: int, tokens: int) -> None:
        if at < len(self.open):
            before = self.open[at].held
            if not self.open[at].top_up(tokens, self.now_s):
                self.note(self.open[at], before)

    @rule(at=st.integers(0, 5), part=st.floats(0.0, 1.0), settles=st.booleans(), again=st.booleans())
    def a_request_ends(self, at: int, part: float, settles: bool, again: bool) -> None:
        if at >= len(self.open):
            return
        reservation = self.open.pop(at)
        held = reservation.held
        used = NO_USAGE
        if settles:
            used = RequestUsage(
                1, int(held.input_tokens * part), int(held.cached_tokens * part), int(held.output_tokens * part), RATES
            )
        for _ in range(2 if again else 1):
            reservation.settle(used, self.now_s)
            reservation.close(self.now_s)
        self.take_back(reservation, used)
        self.closed.append(reservation)

    @rule(at=st.integers(0, 20), tokens=st.integers(0, 50))
    def what_has_ended_is_spoken_of_again(self, at: int, tokens: int) -> None:
        if at < len(self.closed):
            self.closed[at].settle(RequestUsage(1, tokens, 0, tokens, RATES), self.now_s)
            self.closed[at].top_up(tokens, self.now_s)
            self.closed[at].close(self.now_s)

    @invariant()
    def no_sixty_seconds_have_more_than_the_limit(self) -> None:
        for book in self.books:
            for kind, meter in book.limit_usages.items():
                moments = {at_s for at_s, of, _, _ in self.granted if of is kind}
                for end_s in moments:
                    within = (n for at_s, of, n, _ in self.granted if of is kind and end_s - SPAN_S < at_s <= end_s)
                    assert sum(within) <= meter.limit

    @invariant()
    def what_is_counted_is_what_is_held(self) -> None:
        tenant = self.books[0]
        spent = sum(each.held.cost for each in [*self.open, *self.closed])
        assert tenant.limit_usages[LimitKind.PARALLEL].counter.used == len(self.open) == tenant.open
        assert tenant.limit_usages[LimitKind.BUDGET].counter.used == pytest.approx(spent)
        assert spent <= 3_000 * (1 + 1e-9)

    def teardown(self) -> None:
        """When all have ended and a minute has passed, nothing is left."""
        for reservation in self.open:
            reservation.close(self.now_s)
        for book in self.books:
            book.advance(self.now_s + SPAN_S + 1)
            book.advance(self.now_s + 86_400)
            assert book.is_idle


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.booleans())
def test_what_is_settled_is_what_was_used(input_tokens: int, cached: int, output: int, grew: bool) -> None:
    """Whether less was used or more than was reserved: what counts in the end is what the engine says."""
    account = Account("a", Quota(100, 10_000, 9_000, 9_000, 9_000, 9, 1e9))
    [book] = UsageStore().of([account], NOW_S)
    found = reserve([book], RequestUsage(1, 200, 50, 100, RATES), NOW_S)
    assert isinstance(found, Reservation)
    if grew:
        assert not found.top_up(64, NOW_S + 1)
    used = RequestUsage(1, input_tokens, min(cached, input_tokens), output, RATES)
    found.settle(used, NOW_S + 2)
    found.close(NOW_S + 2)
    reported = {kind: meter.counter.used for kind, meter in book.limit_usages.items()}
    assert reported.pop(LimitKind.BUDGET) == pytest.approx(used.cost)
    assert reported == {
        LimitKind.REQUESTS: 1,
        LimitKind.TOKENS: input_tokens + output,
        LimitKind.INPUT: input_tokens,
        LimitKind.OUTPUT: output,
        LimitKind.UNCACHED: input_tokens - used.cached_tokens,
        LimitKind.PARALLEL: 0,
    }
