"""Attainment, refusals, fairness and waste of a run that was made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.slo.fates import No, RequestResult
from bench.slo.figures import figures_of, middle_figures
from bench.slo.scenario import Customer
from bench.slo.traffic import Offered
from simulator.profile import Profile
from tests.bench.slo.small import ANN, BOB, CARL, GOLD, SMALL


def result(
    tenant: Customer, at_s: float = 0.0, ttft_s: float = 0.5, tpot_s: float = 0.02, tokens: int = 101
) -> RequestResult:
    """One that was answered; 1,200 tokens of prompt take an idle engine about a tenth of a second."""
    first_s = at_s + ttft_s
    return RequestResult(Offered(at_s, tenant, 1_200, tokens), [], first_s, first_s + tpot_s * (tokens - 1))


def rejected(tenant: Customer, at_s: float = 0.0, after_s: float = 0.0) -> RequestResult:
    """One that was refused three times."""
    return RequestResult(Offered(at_s, tenant, 1_200, 101), [No("overloaded", after_s)] * 3)


def test_an_objective_is_met_or_not() -> None:
    """First token within the tier's seconds and so many times the own cold ones; tokens within TPOT on average."""
    profile = Profile()
    cold_s = profile.prefill_s(0, 1_200)
    assert result(ANN, ttft_s=1.0 + 2 * cold_s - 0.001).is_met(GOLD, profile)
    assert not result(ANN, ttft_s=1.0 + 2 * cold_s + 0.001).is_met(GOLD, profile)
    assert result(ANN, tpot_s=0.0499).is_met(GOLD, profile)
    assert not result(ANN, tpot_s=0.0501).is_met(GOLD, profile)
    assert result(ANN, tpot_s=9.0, tokens=1).is_met(GOLD, profile)
    assert not rejected(ANN).is_met(GOLD, profile)


def test_what_was_cached_is_not_cold() -> None:
    """A warm request has less time."""
    late = result(ANN, ttft_s=1.1)
    assert late.is_met(GOLD, Profile())
    late.cached_tokens = 1_184
    assert not late.is_met(GOLD, Profile())


def test_an_answer_that_never_ended_is_a_miss() -> None:
    """Though its first token came in time."""
    lost = result(ANN)
    lost.end_s = None
    assert not lost.is_met(GOLD, Profile())


def test_what_had_started_is_lost_and_not_rejected() -> None:
    """It is a miss, and tells nothing of how soon refusals come."""
    lost = RequestResult(Offered(0.0, ANN, 1_200, 101), [No("pod_lost", 7.0, started=True)])
    reported = figures_of(SMALL, [lost, rejected(ANN, after_s=0.1)], 10.0, None)
    assert (reported.tiers["gold"].attainment, reported.tiers["gold"].rejected) == (0.0, 0.5)
    assert (reported.rejection_p99_s, reported.reasons["pod_lost"]) == (0.1, 0.5)


def test_sums_up() -> None:
    """Met over offered, refusals by attempt, computed tokens that are in nobody's answer."""
    fates = [result(ANN), result(ANN, ttft_s=3.0), result(ANN, tokens=1_001), rejected(ANN, after_s=0.2), result(BOB)]
    answered = 3 * 1_301 + 2_201
    reported = figures_of(SMALL, fates, 10.0, 2 * answered)
    gold = reported.tiers["gold"]
    assert (gold.attainment, gold.rejected) == (0.5, 0.25)
    assert gold.attainment_tokens == pytest.approx((1_301 + 2_201) / (3 * 1_301 + 2_201))
    assert reported.met_per_s == 0.3
    assert reported.met_tokens_per_s == pytest.approx((1_301 * 2 + 2_201) / 10)
    assert (reported.rejection_p50_s, reported.reasons) == (0.2, {"overloaded": 0.6})
    assert reported.wasted == 0.5


def test_fairness_goes_by_weight_and_demand() -> None:
    """Bob weighs three times as much as Carl: what is fair for them both is less than even."""
    fair = [result(BOB)] * 30 + [rejected(BOB)] * 10 + [result(CARL)] * 10 + [rejected(CARL)] * 30
    even = [result(BOB)] * 20 + [rejected(BOB)] * 20 + [result(CARL)] * 20 + [rejected(CARL)] * 20
    assert figures_of(SMALL, fair, 10.0, None).tiers["bronze"].jain == pytest.approx(1.0)
    assert figures_of(SMALL, even, 10.0, None).tiers["bronze"].jain == pytest.approx(0.8)


def test_fairness_is_about_the_time_under_load() -> None:
    """What begins after the last was first asked is given to whoever still asks: Carl's three are no injustice."""
    fair = [result(BOB)] * 3 + [rejected(BOB)] * 9 + [result(CARL)] + [rejected(CARL)] * 5
    reported = figures_of(SMALL, [*fair, *[result(CARL, 9.0, ttft_s=2.0)] * 3], 10.0, None)
    assert reported.tiers["bronze"].jain == pytest.approx(1.0)


def test_who_requests_less_than_his_part_is_modest() -> None:
    """Carl is refused though a quarter of what the tier got was more than he asked for."""
    greedy = [result(BOB)] * 40 + [rejected(BOB)] * 40 + [result(CARL)] * 3 + [rejected(CARL)] * 2
    assert figures_of(SMALL, greedy, 10.0, None).tiers["bronze"].modest_rejected == 2
    assert figures_of(SMALL, [rejected(CARL)] * 2, 10.0, None).tiers["bronze"].modest_rejected == 0


def test_dry_is_the_longest_time_without_a_first_token() -> None:
    """Of any tenant of the tier, from the beginning to the end."""
    fates = [result(BOB, at_s) for at_s in range(10)] + [result(CARL, 2.0), result(CARL, 8.0)]
    assert figures_of(SMALL, fates, 10.0, None).tiers["bronze"].dry_s == 6.0


def test_medians_are_of_each_figure() -> None:
    """By itself."""
    several = [
        figures_of(SMALL, fates, 10.0, None) for fates in ([result(ANN)], [rejected(ANN)], [result(ANN), result(ANN)])
    ]
    reported = middle_figures(several)
    assert (reported.tiers["gold"].attainment, reported.met_per_s, reported.reasons) == (1.0, 0.1, {"overloaded": 0.0})
    assert middle_figures([replace(several[0], wasted=0.5)]).wasted == 0.5
