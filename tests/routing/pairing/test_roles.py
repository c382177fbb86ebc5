"""When an engine changes from prefill to decode and back, which one, and why not more often."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from routing.facts import Role
from routing.pairing.roles import (
    PoolEngine,
    RoleBalancer,
    RoleChange,
    RoleGate,
    RoleTerms,
    decode_load,
    decode_need,
)
from routing.pods import Engine
from tests.scorers.columns import candidates_of

TERMS = RoleTerms(min_role_s=20.0, max_changes_per_minute_ratio=0.5)


def workers(
    prefill: int, decode: int, *, since_s: float = 0.0, may_change: bool = True, need: float = 0.0
) -> list[PoolEngine]:
    """So many engines of each role. `need`: engines that the decodes of all would keep busy."""
    named = [(f"p{number}", Role.PREFILL) for number in range(prefill)]
    named += [(f"d{number}", Role.DECODE) for number in range(decode)]
    return [
        PoolEngine(name, role, since_s, may_change=may_change, decode_need=need / decode if role is Role.DECODE else 0)
        for name, role in named
    ]


def observed(fleet: Sequence[PoolEngine], prefill: float, terms: RoleTerms = TERMS, seconds: int = 100) -> RoleBalancer:
    """A balancer that has seen so many seconds of prefill a second."""
    balance = RoleBalancer(terms)
    for second in range(seconds):
        balance.observe(fleet, prefill, float(second))
    return balance


def requested(
    prefill: int, decode: int, prefill_need: float, decode_need: float, now_s: float = 100.0, **more: Any
) -> RoleChange | None:
    """What a balancer says after a while of the same need, in engines."""
    fleet = workers(prefill, decode, need=decode_need, **more)
    return observed(fleet, prefill_need).next_change(fleet, now_s)


@pytest.mark.parametrize(
    ("prefill", "decode", "role"),
    [(2.6, 1.0, Role.PREFILL), (0.3, 5.9, Role.DECODE), (1.6, 4.0, None), (0.5, 0.5, None)],
    ids=["prompts", "answers", "as it should be", "idle"],
)
def test_the_split_that_would_have_missed_less_is_approached(prefill: float, decode: float, role: Role | None) -> None:
    """Two prefill and six decode."""
    change = requested(2, 6, prefill, decode)
    assert (change.role if change else None) is role


def test_no_one_is_helped_back() -> None:
    """Whatever the need, a change is never followed by its reverse while the need stays."""
    for prefill in range(1, 8):
        for tenths in range(0, 80, 7):
            change = requested(prefill, 8 - prefill, tenths / 10, 3.0)
            if change is None:
                continue
            step = 1 if change.role is Role.PREFILL else -1
            back = requested(prefill + step, 8 - prefill - step, tenths / 10, 3.0)
            assert back is None or back.role is change.role


def test_a_burst_that_waits_within_the_objective_moves_no_engine() -> None:
    """Three seconds of prefill every six: two engines do each burst within the time that it may wait."""
    fleet = workers(2, 6, need=4.0)
    balance = RoleBalancer(TERMS)
    for second in range(300):
        balance.observe(fleet, 3.0 if second % 6 == 0 else 0.0, float(second))
        assert balance.next_change(fleet, float(second)) is None


def test_a_burst_of_prompts_takes_no_engine_that_bursts_of_answers_need() -> None:
    """Both kinds come in bursts, one after another: what a third prefill engine gained, the decodes lost."""
    balance, engines = RoleBalancer(TERMS), 5
    for second in range(600):
        is_prompts = second % 40 >= 20
        fleet = workers(8 - engines, engines, need=0.5 if is_prompts else 3.45)
        balance.observe(fleet, 2.8 if is_prompts else 0.0, float(second))
        change = balance.next_change(fleet, float(second))
        assert change is None or change.role is Role.DECODE, (second, change)


def test_traffic_of_another_kind_is_followed() -> None:
    """After ten minutes of answers only prompts come: within a minute and a half most engines prefill."""
    balance, prefill = RoleBalancer(TERMS), 1
    for second in range(690):
        is_prompts = second >= 600
        fleet = workers(prefill, 8 - prefill, need=0.3 if is_prompts else 5.5)
        balance.observe(fleet, 5.5 if is_prompts else 0.3, float(second))
        change = balance.next_change(fleet, 1_000.0 + second)
        if change is not None:
            balance.change_applied(1_000.0 + second)
            prefill += 1 if change.role is Role.PREFILL else -1
    assert prefill >= 6
    assert balance.changes == prefill - 1


def test_one_engine_of_many_moves() -> None:
    """Twenty of forty prefill and are short by a fifth."""
    assert requested(20, 20, 24.0, 8.0) is not None
    assert requested(20, 20, 13.0, 13.0) is None


def test_engines_that_join_are_judged_like_those_that_were_there() -> None:
    """A pool that grows from four to eight goes on with what it has seen."""
    small = workers(2, 2, need=1.0)
    balance = observed(small, 3.0)
    large = workers(2, 6, need=1.0)
    balance.observe(large, 3.0, 100.0)
    change = balance.next_change(large, 100.0)
    assert change is not None
    assert change.role is Role.PREFILL


def test_the_last_of_a_kind_stays() -> None:
    """However hard pressed the others are."""
    assert requested(7, 1, 50.0, 0.1) is None
    assert requested(1, 7, 0.1, 50.0) is None


def test_who_has_least_to_finish_goes() -> None:
    """Decodes must drain before the engine counts."""
    fleet = workers(1, 1)
    fleet += [PoolEngine("busy", Role.DECODE, 0.0, decoding=40, decode_load=0.9, decode_need=0.9)]
    fleet += [PoolEngine("calm", Role.DECODE, 0.0, decoding=3, decode_load=0.1, decode_need=0.1)]
    fleet = [one for one in fleet if one.name != "d0"]
    change = observed(fleet, 1.6).next_change(fleet, 100.0)
    assert change is not None
    assert change.engine == "calm"


def test_an_engine_stays_for_a_while() -> None:
    """Whoever has just changed is not asked."""
    assert requested(2, 6, 6.0, 1.0, now_s=100.0, since_s=90.0) is None
    assert requested(2, 6, 6.0, 1.0, now_s=110.0, since_s=90.0) is not None


def test_who_cannot_change_does_not() -> None:
    """A connector asserts roles."""
    assert requested(2, 6, 6.0, 1.0, may_change=False) is None


def test_no_more_than_a_share_changes_within_a_minute() -> None:
    """Four of eight; a minute later more."""
    fleet = workers(1, 7, need=0.5)
    balance = observed(fleet, 6.0)
    for number in range(4):
        assert balance.next_change(fleet, 100.0 + number) is not None
        balance.change_applied(100.0 + number)
    assert balance.next_change(fleet, 104.0) is None
    assert balance.next_change(fleet, 161.0) is not None


def test_a_draining_engine_bears_its_own_decodes() -> None:
    """What it has to finish is nobody's need: the decodes do not call it back."""
    stays = workers(1, 2, need=1.0)
    leaves = PoolEngine("leaving", Role.PREFILL, 0.0, decoding=10, decode_load=0.9, decode_need=1.5)
    assert leaves.is_draining
    assert observed([*stays, leaves], 1.0).missed(2, 2) == 0.0
    assert observed([*stays, PoolEngine("d2", Role.DECODE, 0.0, decode_need=1.5)], 1.0).missed(2, 2) > 0.5


def test_decode_load_is_the_nearer_end() -> None:
    """Of the steps that a promise allows, or of the cache."""
    assert decode_load(20, 1_000, 100_000, 0.010, 0.001, 0.050) == pytest.approx(0.5)
    assert decode_load(20, 90_000, 100_000, 0.010, 0.001, 0.050) == pytest.approx(0.9)
    assert decode_load(20, 0, 0, 0.010, 0.0, 0.050) == 0.0


def test_few_decodes_need_more_than_their_share() -> None:
    """Eight engines of three sequences step in 0.0236 s; no single engine makes as many tokens within 0.06 s."""
    sequences, step_base_s, each_s, tpot_s = 3, 0.020, 0.001_2, 0.060
    load = decode_load(sequences, 0, 0, step_base_s, each_s, tpot_s)
    tokens_per_s = sequences / (step_base_s + sequences * each_s)
    bearable_per_s = (tpot_s - step_base_s) / each_s / tpot_s
    assert decode_need(load, step_base_s, tpot_s) == pytest.approx(tokens_per_s / bearable_per_s)
    assert 8 * load < 1 < 8 * decode_need(load, step_base_s, tpot_s)


def test_full_engines_need_what_they_hold() -> None:
    """At the promised pace as much as they are, beyond it what has piled up, and idle nothing."""
    assert decode_need(1.0, 0.020, 0.060) == pytest.approx(1.0)
    assert decode_need(3.0, 0.020, 0.060) == pytest.approx(3.0)
    assert decode_need(0.0, 0.0, 0.060) == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttft_s": 0},
        {"min_improvement": 1.5},
        {"window_s": 0},
        {"max_changes_per_minute_ratio": 0},
        {"min_decode_engines": 0},
        {"min_role_s": -1},
    ],
)
def test_terms_are_checked(wrong: dict[str, float]) -> None:
    """Each fault names its field."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RoleTerms(**wrong)  # type: ignore[arg-type]


def candidates(*prefillers: object) -> Any:
    """Positions by who prefills there."""
    return SimpleNamespace(prefillers=prefillers)


def test_only_pairs_where_there_are_any() -> None:
    """Without a pair the single engines must do."""
    gate = RoleGate()
    assert not gate.admits(candidates(None, "p"), 0)
    assert gate.admits(candidates(None, "p"), 1)
    assert gate.admits(candidates(), 0)
    assert gate.stream_objective is None


@pytest.mark.parametrize(
    ("columns", "is_admitted"),
    [
        ({}, True),
        ({"ahead_s": [0.0, 1.0]}, False),
        ({"ahead_s": [3.0, 5.0]}, False),
        ({"typical_answer_tokens": 4.0}, False),
        ({"running": [20.0, 20.0], "own_s": [1.0, 1.0], "typical_answer_tokens": 60.0}, False),
        ({"running": [40.0, 40.0]}, False),
        ({"running": [0.0, 5.0], "typical_answer_tokens": 0.0}, True),
        ({"engines": [Engine(0, "a", role=Role.PREFILL), Engine(1, "b", role=Role.DECODE)]}, False),
    ],
    ids=["late", "in time", "late here too", "short", "many", "slow", "idle", "prefill engine"],
)
def test_what_pairs_would_do_too_late_goes_to_decode_engines(columns: dict[str, Any], *, is_admitted: bool) -> None:
    """Where it is in time there, and makes fewer streams late than it saves first tokens."""
    defaults = {
        "engines": [Engine(0, "a", role=Role.DECODE), Engine(1, "b", role=Role.DECODE)],
        "ahead_s": [0.0, 5.0],
        "own_s": [0.2, 0.2],
        "running": [5.0, 5.0],
        "typical_answer_tokens": 500.0,
    }
    shown = candidates_of(2, prefillers=[None, Engine(2, "p", role=Role.PREFILL)], **(defaults | columns))
    assert RoleGate(RoleTerms(ttft_s=2.0, tpot_s=0.05)).admits(shown, 0) == is_admitted
    assert not RoleGate().admits(shown, 0)
