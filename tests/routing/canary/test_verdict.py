"""Verdicts on canaries: when, how rarely wrong, never left, and the same for every gateway."""

from __future__ import annotations

from dataclasses import replace as with_changes
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from routing.canary.comparison import PairedComparisons, ServedAttempt
from routing.canary.evidence import NO_EVIDENCE, DifferenceEvidence, RatioEvidence, TrialEvidence
from routing.canary.verdict import (
    ABANDONED_S,
    FIXES,
    JUDGED_BY,
    MAX_ENDED,
    NO_STATE,
    REASON_TEXTS,
    CanaryState,
    CanaryTerms,
    Trial,
    TrialStep,
    Verdict,
    VerdictReason,
    advance,
    judge,
    judged_by,
    merged,
    shown_within,
    summaries,
)

TERMS = CanaryTerms("v2", revision="v2", max_error_increase=0.05)
ID = TERMS.identity

GOOD = TrialEvidence(RatioEvidence({-3: 400}), RatioEvidence({-3: 400}), DifferenceEvidence(same=400))
SLOW = TrialEvidence(ttft=RatioEvidence({20: 400}))


def attempt_of(random: Random, size: float, ttft: float, tpot: float, fails: float) -> ServedAttempt:
    """One attempt, with noise."""
    if random.random() < fails:
        return ServedAttempt("m", False, size, size, failed=True)
    ttft_s, tpot_s = (
        size / 10_000 * ttft * random.lognormvariate(0.0, 0.5),
        0.02 * tpot * random.lognormvariate(0.0, 0.2),
    )
    return ServedAttempt("m", False, size, size, ttft_s=ttft_s, output_tokens=100, tpot_s=tpot_s)


def played(
    seed: int, *, ttft: float = 1.0, tpot: float = 1.0, fails: float = 0.0, rounds: int = 1_500
) -> tuple[Verdict, VerdictReason, int]:
    """A trial of so many comparisons, judged after each: its verdict, why, and after how many."""
    random, compared, trial = Random(seed), PairedComparisons(), Trial("v2")
    for number in range(rounds):
        size = 10 ** random.uniform(2, 4)
        compared.observe_standing(attempt_of(random, size, 1.0, 1.0, 0.0), number)
        compared.observe_canary(attempt_of(random, size, ttft, tpot, fails), number)
        evidence = trial.evidence + compared.take()
        trial = replace(trial, evidence=evidence, within=trial.within | shown_within(TERMS, evidence))
        verdict, reason = judge(TERMS, trial)
        if verdict is not Verdict.HOLD:
            return verdict, reason, number
    return *judge(TERMS, trial), rounds


@pytest.mark.parametrize(
    ("worse", "reason"),
    [
        ({"ttft": 1.6}, VerdictReason.TTFT_WORSE),
        ({"tpot": 1.5}, VerdictReason.TPOT_WORSE),
        ({"fails": 0.3}, VerdictReason.ERRORS_WORSE),
    ],
    ids=["TTFT", "TPOT", "errors"],
)
def test_a_worse_one_is_reverted(worse: dict[str, float], reason: VerdictReason) -> None:
    """Whatever of it is worse, within some hundreds of its requests, and for that reason."""
    for seed in range(5):
        verdict, why, after = played(seed, **worse)  # type: ignore[arg-type]
        assert (verdict, why) == (Verdict.REVERT, reason)
        assert after < 800


def test_one_that_is_better_is_promoted() -> None:
    """Within all limits, and in the end that is known."""
    assert [played(seed, ttft=0.8, tpot=0.9)[0] for seed in range(5)] == [Verdict.PROMOTE] * 5


def test_a_sound_one_is_rarely_reverted() -> None:
    """At both limits, looked at after each of 300 requests: the stated probability of an error holds."""
    verdicts = [played(seed, ttft=1.1, tpot=1.1, rounds=300)[0] for seed in range(40)]
    assert verdicts.count(Verdict.REVERT) / 40 <= TERMS.false_revert_rate + 0.03


def step(evidence: TrialEvidence = NO_EVIDENCE, **more: bool) -> TrialStep:
    """A step of one gateway."""
    return TrialStep(evidence, **more)


def test_a_trial_runs_and_ends() -> None:
    """It starts when it may, holds, and its verdict is kept with its evidence."""
    assert advance(NO_STATE, TERMS, step(may_start=False), 0.0) is NO_STATE
    state = advance(NO_STATE, TERMS, step(), 0.0)
    limits = {name: getattr(TERMS, name) for name in JUDGED_BY}
    assert (state.running, state.of(ID)) == (ID, Trial("v2", limits))
    ended = advance(state, TERMS, step(GOOD), 10.0).of(ID)
    assert ended is not None
    assert (ended.verdict, ended.reason, ended.active_s) == (Verdict.PROMOTE, VerdictReason.AS_GOOD, 10.0)


def test_models_without_tokens_have_no_times_per_token() -> None:
    """Embeddings are judged by their first tokens and errors alone."""
    state = advance(NO_STATE, TERMS, step(replace(GOOD, tpot=RatioEvidence())), 0.0)
    assert state.ended[ID].verdict is Verdict.PROMOTE


def test_what_was_shown_once_stays_shown() -> None:
    """A test may be looked at at any time: later comparisons that say less do not take it back, worse ones revert."""
    noise = TrialEvidence(ttft=RatioEvidence({-3: 300, 20: 200}))
    state = advance(NO_STATE, TERMS, step(GOOD, needs_quality=True), 0.0)
    state = advance(state, TERMS, step(noise), 1.0)
    trial = state.trial
    assert trial is not None
    assert trial.evidence.ttft.below(TERMS.max_ttft_ratio) >= 1.0
    assert "ttft" in trial.within
    assert trial.reason is VerdictReason.QUALITY_MISSING
    assert (
        advance(state, TERMS, step(TrialEvidence(ttft=RatioEvidence({20: 2_000}))), 2.0).ended[ID].verdict == "revert"
    )


def test_lower_precision_is_never_promoted_without_a_comparison_of_answers() -> None:
    """It keeps its share, however good its times and however long it lasts, and the reason says what is missing."""
    state = advance(NO_STATE, TERMS, step(), 0.0)
    state = advance(state, TERMS, step(GOOD, needs_quality=True), 1.0)
    for number in range(2_000):
        state = advance(state, TERMS, step(), 60.0 * number)
    trial = state.trial
    assert trial is not None
    assert trial.active_s > TERMS.max_duration_s
    assert (trial.verdict, trial.reason) == (Verdict.HOLD, VerdictReason.QUALITY_MISSING)
    few = TrialEvidence(quality=DifferenceEvidence(same=10))
    trial = advance(state, TERMS, step(few), 1.2e5).trial
    assert trial is not None
    assert trial.reason is VerdictReason.QUALITY_UNDECIDED
    for quality, verdict in (
        (DifferenceEvidence(same=390, worse=5, better=5), Verdict.HOLD),
        (DifferenceEvidence(same=500), Verdict.PROMOTE),
        (DifferenceEvidence(same=400, worse=100), Verdict.REVERT),
    ):
        after = advance(state, TERMS, step(TrialEvidence(quality=quality)), 1.2e5).of(ID)
        assert after is not None
        assert after.verdict is verdict


def test_a_second_canary_is_rejected_while_one_runs() -> None:
    """Until that one ends, or no gateway has it configured any more."""
    second = CanaryTerms("v3", revision="v3")
    state = advance(NO_STATE, TERMS, step(), 0.0)
    assert advance(state, second, step(), ABANDONED_S) is state
    assert advance(advance(state, TERMS, step(), 30.0), second, step(), ABANDONED_S + 1).running == ID
    assert advance(state, second, step(), ABANDONED_S + 1).running == second.identity
    ended = advance(state, TERMS, step(SLOW), 1.0)
    after = advance(ended, second, step(), 2.0)
    assert (after.running, after.of(ID)) == (second.identity, ended.of(ID))


def test_an_undecided_trial_is_reverted() -> None:
    """After its longest time, in which time without a gateway does not count: a restart takes none of it."""
    terms = CanaryTerms("v2", revision="v2", max_duration_s=100.0)
    state = advance(NO_STATE, terms, step(), 0.0)
    for now_s in (50.0, 10_000.0 - 20.0):
        state = advance(state, terms, step(), now_s)
    trial = advance(state, terms, step(), 9_000.0).of(terms.identity)
    assert trial is not None
    assert (trial.verdict, trial.reason, trial.active_s) == (Verdict.REVERT, VerdictReason.MAX_DURATION, 110.0)


def test_a_lost_verdict_is_restored() -> None:
    """By any gateway that knows it; a trial that it has evidence of goes on, unless it has ended meanwhile."""
    running = advance(NO_STATE, TERMS, step(), 0.0)
    ended = advance(running, TERMS, step(SLOW), 1.0)
    assert merged(NO_STATE, ended) == ended == merged(running, ended) == merged(ended, running)
    assert merged(NO_STATE, running) == running


def test_verdicts_that_are_kept_are_bounded() -> None:
    """The newest ones."""
    state = NO_STATE
    for number in range(MAX_ENDED + 5):
        state = advance(state, CanaryTerms(str(number), pool="p"), step(SLOW), 0.0)
    assert list(state.ended) == [CanaryTerms(str(number), pool="p").identity for number in range(5, MAX_ENDED + 5)]


def of_groups(**evidence: TrialEvidence) -> TrialEvidence:
    """The evidence of several groups of tenants together; `all` is no tenant's own."""
    total = NO_EVIDENCE
    for name, found in evidence.items():
        total += found.of_group(None if name == "all" else int(name[1:]))
    return total


MANY_SLOW = TrialEvidence(RatioEvidence({20: 4_000}), RatioEvidence({70: 4_000}))
SHORT = with_changes(TERMS, max_duration_s=600.0)
FAILING = TrialEvidence(errors=DifferenceEvidence(worse=400))
SOUND = TrialEvidence(RatioEvidence({-3: 200}), RatioEvidence({-3: 200}), DifferenceEvidence(same=200))


@pytest.mark.parametrize("poison", [FAILING, MANY_SLOW], ids=["failing", "slow"])
def test_one_tenant_cannot_have_a_canary_reverted(poison: TrialEvidence) -> None:
    """However much of it fails or is slow, nor by keeping it undecided until its time is up; several can, and one
    where tenants are not told apart.
    """
    attacked = of_groups(g1=poison, g2=SOUND, g3=SOUND, g4=SOUND)
    state = advance(NO_STATE, SHORT, step(attacked), 0.0)
    for now_s in range(0, 900, 60):
        state = advance(state, SHORT, step(), float(now_s))
    assert state.trial is not None
    assert state.trial.active_s > SHORT.max_duration_s
    assert (state.trial.verdict, state.trial.reason) == (Verdict.HOLD, VerdictReason.ONE_TENANT)
    several = of_groups(g2=poison, g3=poison)
    assert advance(state, SHORT, step(several), 900.0).ended[ID].verdict is Verdict.REVERT
    alone = advance(NO_STATE, TERMS, step(replace(attacked, by_group={})), 0.0)
    assert alone.ended[ID].verdict is Verdict.REVERT


def test_one_tenant_cannot_keep_a_sound_canary_from_its_time() -> None:
    """With as many failures as successes nothing is decided: a trial that would be promoted without it is held."""
    noise = TrialEvidence(errors=DifferenceEvidence(worse=25, same=100))
    state = advance(NO_STATE, SHORT, step(of_groups(g1=noise, g2=SOUND, g3=SOUND)), 0.0)
    assert state.trial is not None
    assert state.trial.reason is VerdictReason.COLLECTING
    for now_s in range(0, 900, 60):
        state = advance(state, SHORT, step(), float(now_s))
    assert state.trial is not None
    assert (state.trial.verdict, state.trial.reason) == (Verdict.HOLD, VerdictReason.ONE_TENANT)


def test_one_tenant_cannot_have_a_canary_promoted() -> None:
    """Its good requests are not enough; with those of others they are."""
    state = advance(NO_STATE, TERMS, step(of_groups(g1=GOOD)), 0.0)
    assert state.trial is not None
    assert (state.trial.verdict, state.trial.reason) == (Verdict.HOLD, VerdictReason.ONE_TENANT)
    assert advance(state, TERMS, step(of_groups(g2=GOOD)), 1.0).ended[ID].verdict is Verdict.PROMOTE


def test_groups_are_forgotten_with_the_trial() -> None:
    """What is kept of ended trials is small."""
    ended = advance(NO_STATE, TERMS, step(of_groups(g1=GOOD, g2=GOOD)), 0.0).ended[ID]
    assert (ended.evidence.by_group, ended.evidence.ttft.total) == ({}, 800)


def test_a_trial_is_judged_by_the_limits_with_which_it_began() -> None:
    """Whatever another gateway, or this one after a restart, has configured."""
    state = advance(NO_STATE, TERMS, step(), 0.0)
    strict = with_changes(TERMS, max_ttft_ratio=1.0, max_duration_s=1.0, false_revert_rate=0.9)
    slightly = TrialEvidence(ttft=RatioEvidence({4: 100}))
    state = advance(state, strict, step(slightly), 50.0)
    assert state.trial is not None
    assert state.trial.verdict is Verdict.HOLD
    assert judged_by(strict, state.trial) == TERMS
    assert advance(NO_STATE, strict, step(slightly), 0.0).ended[ID].verdict is Verdict.REVERT


def test_a_clock_that_was_wrong_keeps_no_other_canary_away() -> None:
    """A renewal from next year is no renewal once the clock is right again; the trial's own time goes on too."""
    second, year_s = CanaryTerms("v3", revision="v3"), 3.15e7
    state = advance(advance(NO_STATE, TERMS, step(), 0.0), TERMS, step(), year_s)
    assert advance(state, second, step(), 20.0).running == second.identity
    for now_s in (20.0, 30.0, 40.0):
        state = advance(state, TERMS, step(), now_s)
    assert state.trial is not None
    assert (state.trial.active_s, state.trial.renewed_s) == (ABANDONED_S + 20.0, 40.0)
    assert advance(state, second, step(), 50.0) is state
    assert advance(state, second, step(), -600.0) is state


chunks = st.lists(
    st.builds(
        TrialEvidence,
        st.dictionaries(st.sampled_from((-4, 0, 5, 20)), st.integers(1, 60), max_size=2).map(RatioEvidence),
        st.dictionaries(st.sampled_from((-4, 0, 5, 20)), st.integers(1, 60), max_size=2).map(RatioEvidence),
        st.builds(DifferenceEvidence, st.integers(0, 20), st.integers(0, 20), st.integers(0, 200)),
    ),
    max_size=12,
)


@given(chunks, st.data())
def test_a_verdict_is_never_left(steps: list[TrialEvidence], data: st.DataObject) -> None:
    """Whatever comes, through any number of restarts that read the kept state from its JSON."""
    state, final = NO_STATE, None
    for number, evidence in enumerate(steps):
        if data.draw(st.booleans()):
            state = msgspec.json.decode(msgspec.json.encode(state), type=CanaryState)
        state = advance(state, TERMS, step(evidence), float(number))
        trial = state.of(ID)
        assert trial is not None
        assert final is None or trial == final
        final = trial if trial.verdict is not Verdict.HOLD else None


@settings(max_examples=30)
@given(chunks, chunks)
def test_whatever_one_tenant_adds_its_evidence_decides_nothing(
    others: list[TrialEvidence], added: list[TrialEvidence]
) -> None:
    """A kind of comparison that the others' requests do not show to be worse, or within its limit, is not shown so
    with those of one more tenant.
    """
    total = NO_EVIDENCE
    for number, evidence in enumerate(others):
        total += evidence.of_group(number % 3)
    attacked = total
    for evidence in added:
        attacked += evidence.of_group(7)
    assert shown_within(TERMS, attacked) <= shown_within(TERMS, replace(total, by_group={}))
    plain = {each.kind: each.e_value for each in summaries(TERMS, replace(total, by_group={}))}
    for each in summaries(TERMS, attacked):
        assert each.e_value <= plain[each.kind]


@given(chunks, st.data())
def test_gateways_agree(steps: list[TrialEvidence], data: st.DataObject) -> None:
    """One state that two gateways advance in turns ends as with one gateway, whoever brought which evidence, as long
    as no verdict is reached in between.
    """
    sides = data.draw(st.lists(st.booleans(), min_size=len(steps), max_size=len(steps)))
    first, second = ([one for one, at in zip(steps, sides, strict=True) if at is side] for side in (True, False))
    orders = []
    for order in ([*first, *second], [*second, *first]):
        trial = Trial("v2")
        for evidence in order:
            trial = replace(trial, evidence=trial.evidence + evidence)
        trial = replace(trial, within=shown_within(TERMS, trial.evidence))
        orders.append(judge(TERMS, trial))
    assert orders[0] == orders[1]


def test_every_reason_has_a_text() -> None:
    """And those that last until something is done, what to do."""
    assert REASON_TEXTS.keys() == set(VerdictReason)
    assert FIXES.keys() <= REASON_TEXTS.keys()


def test_summaries_name_interval_and_limit() -> None:
    """One of each kind, also without a comparison."""
    shown = {each.kind: str(each) for each in summaries(TERMS, GOOD)}
    assert list(shown) == ["ttft", "tpot", "errors", "quality"]
    assert shown["ttft"] == "ttft 0.924 to 0.942 (limit 1.1, 400 comparisons)"
    assert shown["quality"] == "quality: no comparisons yet (limit 0.02)"


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_duration_s": 0.0},
        {"traffic_share": 1.0},
        {"traffic_share": 0.0},
        {"traffic_share": 1e-7},
        {"max_tpot_ratio": 4.0},
        {"false_revert_rate": 0.0},
        {"max_ttft_ratio": 0.9},
        {"min_comparisons": 0},
        {"max_error_increase": 0.0},
        {"max_quality_loss": 1.0},
        {"quality_share": -0.1},
        {"revision": None},
        {"revision": None, "pool": "p", "pairs_with_revision": "v1"},
    ],
)
def test_terms_are_checked(wrong: dict[str, object]) -> None:
    """A limit below 1 would revert what is faster."""
    with pytest.raises(ValueError, match=r"must be|name the pool|needs the canary"):
        CanaryTerms(**{"name": "x", "revision": "v2", **wrong})  # type: ignore[arg-type]
