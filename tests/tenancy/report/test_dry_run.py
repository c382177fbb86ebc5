"""A policy tried on requests that were: who would have been refused, and why."""

from tenancy.limits.usage import TokenPrices
from tenancy.policy import Policy
from tenancy.report.dry_run import LoggedRequest, dry_run, with_sizes
from tests.tenancy.policies import A, policy


def limited(words: str) -> Policy:
    return policy(f"auth: {{keys: {{a: [{A}]}}}}\ntenants: {{a: {{models: [m], aliases: {{alias: m}}, {words}}}}}")


def burst(count: int, **words: float) -> list[LoggedRequest]:
    return [LoggedRequest(1_800_000_000.0 + at, "a", "m", **words) for at in range(count)]  # type: ignore[arg-type]


def test_a_trial_says_who_would_have_been_refused() -> None:
    """By reason; an alias is the model that it means."""
    held = limited("rpm: 3")
    past = [
        *burst(5),
        LoggedRequest(1_800_000_100.0, "a", "alias"),
        LoggedRequest(1.9e9, "a", "other"),
        LoggedRequest(1.9e9, "b", "m"),
    ]
    fates = dry_run(held, past)
    assert (fates["a"].requests, fates["a"].rejected) == (7, {"requests": 2, "model_not_allowed": 1})
    assert (fates["b"].requests, fates["b"].rejected) == (1, {"unknown tenant": 1})


def test_a_trial_goes_by_tokens_time_and_money() -> None:
    """As they were recorded: what lasted is at one time, what cost is paid."""
    assert dry_run(limited("tpm: 100"), burst(4, input_tokens=30, output_tokens=10))["a"].rejected == {"tokens": 2}
    assert dry_run(limited("max_parallel_requests: 2"), burst(6, duration_s=3.0))["a"].rejected == {
        "parallel_requests": 2
    }
    spent = dry_run(limited("max_budget: 1"), burst(4, output_tokens=10), lambda _: TokenPrices(output=0.04))
    assert spent["a"].rejected == {"budget": 2}


def test_users_have_limits_of_their_own_in_a_trial() -> None:
    """Where the record names them."""
    past = [LoggedRequest(1_800_000_000.0 + at, "a", "m", user=user) for at, user in enumerate("xxxy")]
    assert dry_run(limited("per_user: {rpm: 2}"), past)["a"].rejected == {"requests": 1}


def rejected(count: int, **words: object) -> list[LoggedRequest]:
    return [LoggedRequest(1_800_000_010.0 + at, "a", "m", was_rejected=True, **words) for at in range(count)]  # type: ignore[arg-type]


def test_rejected_requests_are_tried_with_the_sizes_of_served_ones() -> None:
    """Twelve of thirteen were rejected, so their records hold nothing: the same limit rejects them again."""
    past = [*burst(1, input_tokens=60, output_tokens=40), *rejected(12)]
    for words, refused in (("tpm: 100", {"tokens": 12}), ("output_tpm: 200", {"output_tokens": 8}), ("tpm: 1300", {})):
        fate = dry_run(limited(words), past)["a"]
        assert (fate.requests, fate.were_rejected, fate.rejected) == (13, 12, refused)


def test_rejected_requests_last_as_long_as_served_ones() -> None:
    """So that they are counted where requests at one time are limited."""
    past = [*burst(1, duration_s=100.0), *rejected(5)]
    assert dry_run(limited("max_parallel_requests: 2"), past)["a"].rejected == {"parallel_requests": 4}


def test_what_is_known_of_a_rejected_request_counts() -> None:
    """Its prompt's bytes by the bytes per token of served ones, and its own `max_tokens`."""
    served = burst(1, input_tokens=100, output_tokens=40, prompt_bytes=500)
    (_, sized) = with_sizes([*served, *rejected(1, prompt_bytes=5_000, max_tokens=10)])
    assert (sized.input_tokens, sized.output_tokens) == (1_000, 10)
    (alone,) = with_sizes(rejected(1, prompt_bytes=400, max_tokens=7))
    assert (alone.input_tokens, alone.output_tokens) == (100, 7)


def test_another_tenants_requests_stand_in_where_none_was_served() -> None:
    """First those to the same model."""
    others = [LoggedRequest(0.0, "b", "m", output_tokens=30), LoggedRequest(0.0, "b", "x", output_tokens=90)]
    *_, sized = with_sizes([*others, *rejected(1)])
    assert sized.output_tokens == 30


def test_whole_answers_reserve_what_they_may_take() -> None:
    """Until they end: five at one time, of which two fit, though all of them used little."""
    at_once = [
        LoggedRequest(1_800_000_000.0, "a", "m", output_tokens=10, duration_s=5.0, is_unary=True, max_tokens=900)
        for _ in range(5)
    ]
    later = [LoggedRequest(1_800_000_006.0, "a", "m", output_tokens=10, is_unary=True, max_tokens=400)]
    assert dry_run(limited("output_tpm: 1000"), [*at_once, *later])["a"].rejected == {"output_tokens": 3}
