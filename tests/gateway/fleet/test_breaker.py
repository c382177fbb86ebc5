"""A breaker opens after failures in a row, tries again after a pause, and trusts again after successes."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.breaker import BreakerState, BreakerThresholds, CircuitBreaker

RULES = BreakerThresholds(failures=3, trial_successes=2, cooldown_s=1.0, max_cooldown_s=4.0)


def opened(now_s: float = 0.0) -> CircuitBreaker:
    return CircuitBreaker(RULES).on_failure(now_s).on_failure(now_s).on_failure(now_s)


def test_three_failures_in_a_row_open_it() -> None:
    """Two and a success between leave it closed."""
    breaker = CircuitBreaker(RULES).on_failure(0).on_failure(0).on_success().on_failure(0).on_failure(0)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.on_failure(0).state is BreakerState.OPEN


def test_a_success_that_changes_nothing_gives_the_same_value() -> None:
    """Who answers a request at a well pod learns by identity that there is nothing to do."""
    breaker = CircuitBreaker(RULES)
    assert breaker.on_success() is breaker


def test_it_is_failing_until_it_has_answered() -> None:
    """From the first failure on, open or not; on trial it has yet to show that it can."""
    breaker = CircuitBreaker(RULES)
    assert not breaker.is_failing
    assert breaker.on_failure(0).is_failing
    assert not breaker.on_failure(0).on_success().is_failing
    assert opened().is_failing
    trial = opened().on_healthy_probe(1)
    assert trial.is_failing
    assert not trial.on_success().is_failing


def test_it_opens_at_once_where_there_is_no_listener() -> None:
    """A refused connection needs no second opinion."""
    assert CircuitBreaker(RULES).on_unreachable(0).is_open


def test_a_probe_gives_it_a_trial_only_after_its_pause() -> None:
    """Well again too early is not believed."""
    breaker = opened(now_s=10)
    assert breaker.on_healthy_probe(10.9).is_open
    assert breaker.on_healthy_probe(11.0).state is BreakerState.TRIAL


def test_a_trial_ends_in_trust_or_in_a_longer_pause() -> None:
    """Successes close it and forget its past; one failure doubles the pause, up to a bound."""
    trial = opened().on_healthy_probe(1)
    closed = trial.on_success().on_success()
    assert closed == CircuitBreaker(RULES, open_count=1)
    again = trial.on_success().on_failure(1)
    assert (again.state, again.open_until_s) == (BreakerState.OPEN, 3.0)
    for now_s, pause_s in ((100, 4.0), (200, 4.0)):
        again = again.on_healthy_probe(now_s).on_failure(now_s)
        assert again.open_until_s == now_s + pause_s
    assert again.open_count == 4


def test_what_began_before_it_opened_says_nothing() -> None:
    """Requests still in flight neither close it nor prolong its pause."""
    breaker = opened()
    assert breaker.on_success() is breaker
    assert breaker.on_failure(0.5) is breaker
    assert breaker.on_unreachable(0.5).open_until_s == breaker.open_until_s


def test_it_knows_a_pod_that_is_gone_from_one_that_fails() -> None:
    """Who is gone for certain stays so until a probe finds it well again, however it came to be open."""
    assert not opened().is_unreachable
    assert CircuitBreaker(RULES).on_unreachable(0).is_unreachable
    gone = opened().on_unreachable(0.5)
    assert gone.is_unreachable
    assert gone.on_unreachable(0.6) is gone
    assert gone.on_healthy_probe(0.7).is_open
    assert not gone.on_healthy_probe(0.7).is_unreachable
    assert not gone.on_healthy_probe(1).on_failure(2).is_unreachable


MOVES = {
    "failed": CircuitBreaker.on_failure,
    "tripped": CircuitBreaker.on_unreachable,
    "probed": CircuitBreaker.on_healthy_probe,
}


@given(st.lists(st.sampled_from(["failed", "succeeded", "tripped", "probed"]), max_size=60))
def test_whatever_happens_a_well_pod_gets_its_trial(moves: list[str]) -> None:
    """No history shuts a pod out for longer than the longest pause, and none opens it without a failure."""
    breaker, now_s = CircuitBreaker(RULES), 0.0
    for move in moves:
        now_s += 0.5
        breaker = breaker.on_success() if move == "succeeded" else MOVES[move](breaker, now_s)
    assert not breaker.on_healthy_probe(now_s + RULES.max_cooldown_s).is_open
    if not {"failed", "tripped"} & set(moves):
        assert breaker == CircuitBreaker(RULES)
