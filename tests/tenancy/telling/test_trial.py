"""A policy tried on requests that were: who would have been refused, and why."""

from tenancy.limits.use import Rates
from tenancy.policy import Policy
from tenancy.telling.trial import Past, try_on
from tests.tenancy.policies import A, policy


def limited(words: str) -> Policy:
    return policy(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{models: [m], aliases: {{alias: m}}, {words}}}}}")


def burst(count: int, **words: float) -> list[Past]:
    return [Past(1_800_000_000.0 + at, "a", "m", **words) for at in range(count)]  # type: ignore[arg-type]


def test_a_trial_says_who_would_have_been_refused() -> None:
    """By reason; an alias is the model that it means."""
    held = limited("rpm: 3")
    past = [*burst(5), Past(1_800_000_100.0, "a", "alias"), Past(1.9e9, "a", "other"), Past(1.9e9, "b", "m")]
    fates = try_on(held, past)
    assert (fates["a"].requests, fates["a"].refused) == (7, {"requests": 2, "model_not_allowed": 1})
    assert (fates["b"].requests, fates["b"].refused) == (1, {"unknown tenant": 1})


def test_a_trial_goes_by_tokens_time_and_money() -> None:
    """As they were recorded: what lasted is at one time, what cost is paid."""
    assert try_on(limited("tpm: 100"), burst(4, input_tokens=30, output_tokens=10))["a"].refused == {"tokens": 2}
    assert try_on(limited("max_parallel_requests: 2"), burst(6, duration_s=3.0))["a"].refused == {
        "parallel_requests": 2
    }
    spent = try_on(limited("max_budget: 1"), burst(4, output_tokens=10), lambda _: Rates(output=0.04))
    assert spent["a"].refused == {"budget": 2}


def test_users_have_limits_of_their_own_in_a_trial() -> None:
    """Where the record names them."""
    past = [Past(1_800_000_000.0 + at, "a", "m", user=user) for at, user in enumerate("xxxy")]
    assert try_on(limited("per_user: {rpm: 2}"), past)["a"].refused == {"requests": 1}
