"""Who is sent to a canary, when it is rolled back, and how rarely a sound one is."""

from __future__ import annotations

from random import Random

import pytest

from routing.canary import Canary, CanaryStage, CanaryTerms, Rollout, SequentialTest, TrialEndReason

NEW, OLD = (None, "v2"), (None, "v1")
TERMS = CanaryTerms("v2", revision="v2", traffic_share=0.1)
PODS = {"http://a": OLD, "http://b": OLD, "http://c": NEW}


def trial(
    seed: int, slower: float, rounds: int = 2_000, *, tpot: float = 1.0, fails: float = 0.0
) -> tuple[Canary, int]:
    """A canary that takes `slower` times as long, and how many of its requests it took to say so."""
    random, rollout = Random(seed), Rollout([TERMS])
    canary = rollout.start_next(PODS)
    assert canary is not None
    for number in range(rounds):
        size = 10 ** random.uniform(2, 4)
        for marks, factor, pace in ((OLD, 1.0, 1.0), (NEW, slower, tpot)):
            ttft_s = size / 10_000 * factor * random.lognormvariate(0.0, 0.5)
            failed = marks is NEW and random.random() < fails
            tpot_s = 0.02 * pace * random.lognormvariate(0.0, 0.2)
            rollout.observe(marks, size, None if failed else ttft_s, None if failed else tpot_s, float(number))
        if canary.stage is not CanaryStage.ON_TRIAL:
            return canary, number
    return canary, rounds


@pytest.mark.parametrize(
    "worse",
    [{"slower": 1.6}, {"slower": 1.0, "tpot": 1.5}, {"slower": 1.0, "fails": 0.7}],
    ids=["TTFT", "TPOT", "fails"],
)
def test_a_worse_one_is_rolled_back(worse: dict[str, float]) -> None:
    """Whichever of its times is worse, within some hundreds of its requests."""
    for seed in range(5):
        canary, after = trial(seed, **worse)  # type: ignore[arg-type]
        assert canary.stage is CanaryStage.ROLLED_BACK
        assert after < 800


def test_one_that_is_alike_is_accepted() -> None:
    """Exactly as fast: within the gate, and in the end that is known."""
    stages = [trial(seed, 0.8, 4_000, tpot=0.9)[0].stage for seed in range(8)]
    assert stages == [CanaryStage.ACCEPTED] * 8


def test_a_sound_one_is_rarely_rolled_back() -> None:
    """At the very gate, looked at after each of 300 requests: the stated chance of error holds."""
    back = sum(
        trial(seed, TERMS.max_ttft_ratio, 300, tpot=TERMS.max_tpot_ratio)[0].stage is CanaryStage.ROLLED_BACK
        for seed in range(60)
    )
    assert back / 60 <= TERMS.false_rollback_rate + 0.04


def test_a_fair_bet_makes_no_one_rich() -> None:
    """However long it goes on."""
    rich = 0
    for seed in range(200):
        random, wager = Random(seed), SequentialTest()
        for _ in range(500):
            wager.observe(won=random.random() < 0.5)
        rich += wager.max_wealth >= 20.0
    assert rich / 200 <= 0.05 + 0.02


def test_a_share_goes_to_the_canary() -> None:
    """A session goes the same way each time."""
    rollout = Rollout([TERMS])
    assert set(rollout.eligible_pods("s", PODS)) == {"http://a", "http://b"}
    rollout.start_next(PODS)
    tried = [key for key in map(str, range(5_000)) if set(rollout.eligible_pods(key, PODS)) == {"http://c"}]
    assert len(tried) / 5_000 == pytest.approx(TERMS.traffic_share, abs=0.02)
    assert all(set(rollout.eligible_pods(key, PODS)) == {"http://c"} for key in tried)


def test_who_was_rolled_back_serves_no_request_and_who_was_accepted_serves_as_all() -> None:
    """Unless there is nobody else."""
    rollout = Rollout([TERMS])
    canary = rollout.start_next(PODS)
    assert canary is not None
    canary.stage = CanaryStage.ROLLED_BACK
    assert all(set(rollout.eligible_pods(str(key), PODS)) == {"http://a", "http://b"} for key in range(100))
    assert set(rollout.eligible_pods("s", {"http://c": NEW})) == {"http://c"}
    canary.stage = CanaryStage.ACCEPTED
    assert set(rollout.eligible_pods("s", PODS)) == set(PODS)


def test_one_at_a_time() -> None:
    """The second waits, and its pods with it."""
    later = CanaryTerms("fast", pool="fast")
    pods = {**PODS, "http://d": ("fast", "v1")}
    rollout = Rollout([TERMS, later])
    first = rollout.start_next(pods)
    assert first is not None
    assert first.terms is TERMS
    assert rollout.start_next(pods) is None
    assert all("http://d" not in rollout.eligible_pods(str(key), pods) for key in range(100))
    first.stage = CanaryStage.ACCEPTED
    second = rollout.start_next(pods)
    assert second is not None
    assert second.terms is later


def test_an_undecided_trial_ends() -> None:
    """Rolled back after its longest time, counted from when it began; the next one has its turn."""
    later = CanaryTerms("fast", pool="fast")
    pods = {**PODS, "http://d": ("fast", "v1")}
    rollout = Rollout([CanaryTerms("v2", revision="v2", max_duration_s=600.0), later])
    first = rollout.start_next(pods, 1_000.0)
    assert first is not None
    assert rollout.expire(1_599.0) is None
    assert rollout.expire(1_600.0) is first
    assert (first.stage, first.end_reason) == (CanaryStage.ROLLED_BACK, TrialEndReason.MAX_DURATION)
    second = rollout.start_next(pods, 1_600.0)
    assert second is not None
    assert second.terms is later
    assert rollout.expire(1_601.0) is None


def test_split_pods_are_never_on_trial() -> None:
    """Waiting or on trial, a canary with a prefill or decode pod ends at once and serves nobody; others stay."""
    later = CanaryTerms("fast", pool="fast")
    pods = {**PODS, "http://d": ("fast", "v1")}
    rollout = Rollout([TERMS, later])
    rollout.start_next(pods)
    assert rollout.end_disaggregated({"http://a": OLD}) == []
    ended = rollout.end_disaggregated({"http://a": OLD, "http://c": NEW})
    assert [(canary.terms.name, canary.stage, canary.end_reason) for canary in ended] == [
        ("v2", CanaryStage.ROLLED_BACK, TrialEndReason.SPLIT)
    ]
    assert rollout.end_disaggregated({"http://c": NEW}) == []
    assert all("http://c" not in rollout.eligible_pods(str(key), pods) for key in range(100))


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_duration_s": 0.0},
        {"traffic_share": 1.0},
        {"false_rollback_rate": 0.0},
        {"max_ttft_ratio": 0.9},
        {"min_comparisons": 0},
        {"revision": None},
    ],
)
def test_terms_are_checked(wrong: dict[str, object]) -> None:
    """A gate below 1 would roll back what is faster."""
    with pytest.raises(ValueError, match=r"pool|traffic_share|max_ttft_ratio|max_duration_s"):
        CanaryTerms(**{"name": "x", "revision": "v2", **wrong})  # type: ignore[arg-type]
