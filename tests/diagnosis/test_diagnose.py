"""One look, and one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from diagnosis.diagnose import CAUSE_WAIT_S, CLEAR_AFTER_S, HOLD_S, NO_STATE, SURE, DiagnosisState, diagnose
from diagnosis.distribution import distribution_of
from diagnosis.facts import EnvironmentFacts, FleetFacts, PodObservation, SpeculationWindow
from diagnosis.finding import Diagnosis, Severity
from diagnosis.recipe import Indication
from diagnosis.recipes.registry import BY_NAME, RECIPES
from diagnosis.scene import Scene
from routing.facts import Role
from tests.diagnosis.scene import NOW_S, engine, fetching, flags, fleet, gaps, gauge, later, pod, view

PRESSED = fleet(pod("c0", engines=(engine(preemptions=8.0, kv_usage=gauge(0.97)),)))
STEP_S = 5.0


def watched(*spans: tuple[FleetFacts, float]) -> list[Diagnosis]:
    """Look every 5 s at each of the facts for a span of seconds."""
    state, seen = NO_STATE, []
    for number, facts in enumerate(each_look(*spans)):
        at = number * STEP_S
        diagnosis, state = diagnose(later(facts, at), None, state, NOW_S + at)
        seen.append(diagnosis)
    return seen


def each_look(*spans: tuple[FleetFacts, float]) -> Iterator[FleetFacts]:
    return (facts for facts, span in spans for _ in range(int(span / STEP_S)))


def raised(diagnosis: Diagnosis) -> list[str]:
    return [finding.recipe for finding in diagnosis.findings]


def test_evidence_must_last_before_it_is_a_finding() -> None:
    """One look is none; the time at which it began is kept."""
    seen = watched((PRESSED, 30.0))
    first = next(index for index, each in enumerate(seen) if each.findings)
    assert first * STEP_S == BY_NAME["kv_pressure"].raise_after_s
    (finding,) = seen[-1].findings
    assert finding.recipe == "kv_pressure"
    assert finding.pods == ("http://c0:8000",)
    assert finding.since_s == NOW_S
    assert finding.evidence[0].value == 8.0
    assert finding.first_step
    assert finding.wrong_if


def test_a_flicker_is_never_raised() -> None:
    """Evidence in every third look only."""
    assert not any(each.findings for each in watched(*[(PRESSED, 5.0), (fleet(), 10.0)] * 10))


def test_a_finding_is_cleared_soon_after_its_evidence_ends() -> None:
    """Well within the minute, and not at the first look without."""
    seen = watched((PRESSED, 30.0), (fleet(), 60.0))
    held = [bool(each.findings) for each in seen[6:]]
    assert held[0]
    assert held.index(False) * STEP_S <= CLEAR_AFTER_S
    assert not any(held[held.index(False) :])


def test_a_finding_is_kept_while_its_figures_are_missing_but_not_for_ever() -> None:
    """Missing is not healthy."""
    blind = fleet(pod("c0", engines=(engine(preemptions=None, kv_usage=None),)))
    seen = watched((PRESSED, 30.0), (blind, 90.0))
    kept = [bool(each.findings) for each in seen[6:]]
    assert kept.index(False) * STEP_S == HOLD_S - STEP_S
    assert any(gap.recipe == "kv_pressure" for gap in seen[-1].gaps)


def test_a_pod_that_left_has_no_findings() -> None:
    """At once."""
    without = replace(fleet(), pods=fleet().pods[1:])
    seen = watched((PRESSED, 30.0), (without, 5.0))
    assert seen[5].findings
    assert not seen[6].findings


def test_one_finding_names_all_its_pods() -> None:
    """The same fault in one pool is one finding."""
    both = fleet(*(pod(f"c{n}", engines=(engine(preemptions=8.0, kv_usage=gauge(0.97)),)) for n in range(2)))
    (finding,) = watched((both, 30.0))[-1].findings
    assert finding.pods == ("http://c0:8000", "http://c1:8000")


def test_causes_stand_before_their_consequences() -> None:
    """TCP makes transfers slow; both are shown, and which one explains which."""
    slow = fetching(transfers=replace(fetching().transfers, seconds=40.0), fetches_queued=gauge(5.0))  # type: ignore[type-var]
    tcp = EnvironmentFacts(NOW_S, {"UCX_TLS": "rc,tcp"}, {})
    seen = watched((fleet(pod("d0", "split", Role.DECODE, engines=(slow,), environment=tcp)), 40.0))[-1]
    assert raised(seen)[0] == "tcp_fallback"
    assert {finding.explained_by for finding in seen.findings[1:]} <= {"tcp_fallback", "slow_transfers"}
    assert set(raised(seen)) >= {"slow_transfers", "transfer_queue"}


def test_a_cause_explains_what_shows_at_the_pods_that_it_affects() -> None:
    """A prefill pod that sends slowly makes transfers wait at decode pods, where no other link is at fault."""
    held = fleet(
        pod("p0", "split", Role.PREFILL, requests=view(handover=distribution_of([0.9] * 20))),
        pod("p1", "split", Role.PREFILL, requests=view(handover=distribution_of([0.2] * 20))),
        pod("d0", "split", Role.DECODE, engines=(fetching(fetches_queued=gauge(5.0)),)),
    )
    first, second = watched((held, 45.0))[-1].findings
    assert (first.recipe, first.pods) == ("slow_transfers", ("http://p0:8000",))
    assert "http://d0:8000" in first.affected
    assert (second.recipe, second.explained_by) == ("transfer_queue", "slow_transfers")


def test_failures_stand_before_slowness_and_advice_last() -> None:
    """By severity."""
    held = fleet(
        pod("c0", engines=(engine(generation_tokens=0.0, computed_tokens=0.0),)),
        pod("c1", engines=(engine(preemptions=8.0, kv_usage=gauge(0.97)),)),
        pod("c2", flags=flags(attention_backend="OTHER")),
    )
    seen = watched((held, 30.0))[-1]
    assert raised(seen) == ["engine_stalled", "kv_pressure", "unlike_kernels"]
    assert seen.findings[-1].severity is Severity.ADVICE


def test_a_healthy_fleet_has_no_findings_and_an_empty_state() -> None:
    """Nothing is remembered of it."""
    diagnosis, state = diagnose(fleet(), None, NO_STATE, NOW_S)
    assert diagnosis.findings == ()
    assert state == DiagnosisState()


def test_a_fleet_of_which_nothing_is_known_is_unknown() -> None:
    """Neither healthy nor ill."""
    pods = tuple(PodObservation(each.address, each.pool, role=each.role) for each in fleet().pods)
    diagnosis, _ = diagnose(FleetFacts(NOW_S, pods), None, NO_STATE, NOW_S)
    assert diagnosis.is_unknown


def test_a_finding_is_not_sure_where_its_cause_could_not_be_checked() -> None:
    """A queue of transfers may come of slow ones, whose bytes are missing."""
    queued = fetching(fetches_queued=gauge(5.0))
    sure = watched((fleet(pod("d0", "split", Role.DECODE, engines=(queued,))), 40.0))[-1].findings[0]
    assert (sure.recipe, sure.confidence >= SURE) == ("transfer_queue", True)
    blind = replace(queued, transfers=None)
    unsure = watched((fleet(pod("d0", "split", Role.DECODE, engines=(blind,))), 40.0))[-1].findings[0]
    assert (unsure.recipe, unsure.confidence < SURE) == ("transfer_queue", True)


def test_a_clock_that_is_set_back_holds_no_finding() -> None:
    """Neither one that is raised, nor one that is to be."""
    healthy, state, at = fleet(), NO_STATE, 0.0
    while at <= 30.0:
        diagnosis, state = diagnose(later(PRESSED, at), None, state, NOW_S + at)
        at += STEP_S
    assert raised(diagnosis) == ["kv_pressure"]
    for seconds in (-3600.0, CLEAR_AFTER_S - 3600.0):
        diagnosis, state = diagnose(later(healthy, seconds), None, state, NOW_S + seconds)
    assert raised(diagnosis) == []


def test_a_recipe_that_raises_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported as a gap; the other recipes are looked at."""

    def fail(_: Scene) -> Iterator[Indication]:
        return cast("Iterator[Indication]", (1 // zero for zero in (0,)))

    broken = tuple(replace(recipe, look=fail) if recipe.name == "redis_slow" else recipe for recipe in RECIPES)
    monkeypatch.setattr("diagnosis.diagnose.RECIPES", broken)
    diagnosis = watched((PRESSED, 30.0))[-1]
    assert raised(diagnosis) == ["kv_pressure"]
    assert ("redis_slow", "the recipe raised ZeroDivisionError") in {(gap.recipe, gap.reason) for gap in diagnosis.gaps}


SLOW_CHAT = {"token_gap": gaps((0.045, 900)), "prefill": distribution_of([0.12] * 40)}
"""Of a pod that is slower than its peers."""

REJECTED = SpeculationWindow(1_000.0, 2_000.0, 20.0)


def test_a_finding_waits_for_evidence_of_its_cause() -> None:
    """A pod is slow for its drafts, whose counters tell it a moment later: the first finding is the cause."""
    slow = fleet(pod("c0", engines=(engine(**SLOW_CHAT),)))
    both = fleet(pod("c0", engines=(engine(speculation=REJECTED, **SLOW_CHAT),)))
    seen = [raised(each) for each in watched((slow, 10.0), (both, 40.0))]
    first = next(each for each in seen if each)
    assert first == ["acceptance_decayed", "slower_than_peers"]
    assert seen.index(first) * STEP_S == 40.0
    assert [raised(each) for each in watched((slow, 35.0))][-1] == ["slower_than_peers"]


def test_a_finding_does_not_wait_longer_than_a_quarter_of_a_minute() -> None:
    """Evidence of its cause may come and go without being raised."""
    slow = fleet(pod("c0", engines=(engine(**SLOW_CHAT),)))
    both = fleet(pod("c0", engines=(engine(speculation=REJECTED, **SLOW_CHAT),)))
    seen = [raised(each) for each in watched((slow, 10.0), *[(both, 5.0), (slow, 15.0)] * 3)]
    assert next(index for index, each in enumerate(seen) if each) * STEP_S <= 30.0 + CAUSE_WAIT_S
    assert all(each in ([], ["slower_than_peers"]) for each in seen)
    assert ["slower_than_peers"] in seen
