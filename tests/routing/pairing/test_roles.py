"""When an engine changes from prefill to decode and back, which one, and why not more often."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from routing.facts import Role
from routing.pairing.roles import (
    EngineNeed,
    PairsOnlyGate,
    PoolEngine,
    RoleBalancer,
    RoleChange,
    RoleTerms,
    decode_load,
    decode_need,
)

TERMS = RoleTerms(min_role_s=20.0, max_changes_per_minute_ratio=0.5)


def workers(prefill: int, decode: int, *, since_s: float = 0.0, may_change: bool = True) -> list[PoolEngine]:
    """So many engines of each role."""
    named = [(f"p{number}", Role.PREFILL) for number in range(prefill)]
    named += [(f"d{number}", Role.DECODE) for number in range(decode)]
    return [PoolEngine(name, role, since_s, may_change=may_change) for name, role in named]


def requested(
    fleet: Sequence[PoolEngine], need: EngineNeed, now_s: float = 100.0, terms: RoleTerms = TERMS
) -> RoleChange | None:
    """What a fresh balance says."""
    return RoleBalancer(terms).next_change(fleet, need, now_s)


@pytest.mark.parametrize(
    ("need", "role"),
    [
        (EngineNeed(2.6, 1.0), Role.PREFILL),
        (EngineNeed(0.3, 5.5), Role.DECODE),
        (EngineNeed(1.9, 5.6), None),
        (EngineNeed(0.5, 0.5), None),
    ],
    ids=["prompts", "answers", "as it should be", "idle"],
)
def test_the_worse_off_is_helped_where_that_helps(need: EngineNeed, role: Role | None) -> None:
    """Two prefill and six decode."""
    change = requested(workers(2, 6), need)
    assert (change.role if change else None) is role


def test_no_one_is_helped_back() -> None:
    """Whatever the need, a change is never followed by its reverse while the need stays."""
    for prefill in range(1, 8):
        for tenths in range(1, 100):
            need = EngineNeed(tenths / 10, 6.0)
            change = requested(workers(prefill, 8 - prefill), need)
            if change is None:
                continue
            step = 1 if change.role is Role.PREFILL else -1
            back = requested(workers(prefill + step, 8 - prefill - step), need)
            assert back is None or back.role is change.role


def test_help_that_leaves_the_helpers_short_must_help_much() -> None:
    """Of three decoding engines with work for 2.5 none goes; one goes where prompts are twice as short as they are."""
    assert requested(workers(5, 3), EngineNeed(9.0, 2.5)) is None
    assert requested(workers(5, 3), EngineNeed(9.0, 1.9)) is not None
    assert requested(workers(5, 3), EngineNeed(13.0, 2.5)) is not None
    assert requested(workers(1, 7), EngineNeed(9.0, 6.5)) is not None


def test_one_engine_of_many_moves_for_the_little_that_it_improves() -> None:
    """Twenty of forty prefill and are short by a fifth: each move lowers that by a twentieth."""
    assert requested(workers(20, 20), EngineNeed(24.0, 8.0)) is not None
    assert requested(workers(20, 20), EngineNeed(20.0, 19.5)) is None


def test_the_last_of_a_kind_stays() -> None:
    """However hard pressed the others are."""
    assert requested(workers(7, 1), EngineNeed(50.0, 0.1)) is None
    assert requested(workers(1, 7), EngineNeed(0.1, 50.0)) is None


def test_who_has_least_to_finish_goes() -> None:
    """Decodes must drain before the engine counts."""
    fleet = workers(1, 1)
    fleet += [PoolEngine("busy", Role.DECODE, 0.0, decoding=40, decode_load=0.9)]
    fleet += [PoolEngine("calm", Role.DECODE, 0.0, decoding=3, decode_load=0.1)]
    fleet = [one for one in fleet if one.name != "d0"]
    change = requested(fleet, EngineNeed(3.0, 1.0))
    assert change is not None
    assert change.engine == "calm"


def test_an_engine_stays_for_a_while() -> None:
    """Whoever has just changed is not asked."""
    fleet = workers(2, 6, since_s=90.0)
    assert requested(fleet, EngineNeed(6.0, 1.0), now_s=100.0) is None
    assert requested(fleet, EngineNeed(6.0, 1.0), now_s=110.0) is not None


def test_who_cannot_change_does_not() -> None:
    """A connector asserts roles."""
    assert requested(workers(2, 6, may_change=False), EngineNeed(6.0, 1.0)) is None


def test_no_more_than_a_share_changes_within_a_minute() -> None:
    """Four of eight; a minute later more."""
    balance, fleet = RoleBalancer(TERMS), workers(1, 7)
    for number in range(4):
        assert balance.next_change(fleet, EngineNeed(9.0, 1.0), 100.0 + number) is not None
        balance.change_applied(100.0 + number)
    assert balance.next_change(fleet, EngineNeed(9.0, 1.0), 104.0) is None
    assert balance.next_change(fleet, EngineNeed(9.0, 1.0), 161.0) is not None


def test_a_draining_engine_bears_its_own_decodes() -> None:
    """What it has to finish is nobody's need: the decodes do not call it back."""
    stays = PoolEngine("d", Role.DECODE, 0.0, decoding=10, decode_load=0.5, decode_need=0.75)
    leaves = PoolEngine("leaving", Role.PREFILL, 0.0, decoding=10, decode_load=0.9, decode_need=0.95)
    assert leaves.is_draining
    assert RoleBalancer(TERMS).observe([stays, leaves], 0.0, 0.0).decode == 0.75


def test_need_follows_what_is_requested() -> None:
    """Two seconds of prefill a second are two engines and a margin; forgotten when it ends."""
    balance, fleet = RoleBalancer(TERMS), workers(2, 6)
    for second in range(60):
        need = balance.observe(fleet, 2.0, float(second))
    assert need.prefill == pytest.approx(2.0 / TERMS.max_prefill_utilization, rel=0.02)
    for second in range(60, 180):
        need = balance.observe(fleet, 0.0, float(second))
    assert need.prefill < 0.05


def test_a_peak_is_remembered_while_the_other_kind_has_its_own() -> None:
    """Decodes that came in a burst are still reckoned with when prompts come in one, and not for ever."""
    balance, calm = RoleBalancer(TERMS), workers(2, 6)
    burst = [*workers(2, 5), PoolEngine("d", Role.DECODE, 0.0, decoding=30, decode_load=3.0, decode_need=3.0)]
    peak = max(balance.observe(burst, 0.0, float(second)).decode for second in range(30))
    later = [balance.observe(calm, 0.0, float(second)).decode for second in range(30, 150)]
    assert peak >= 3.0
    assert later[10] > peak / 3
    assert later[-1] < 0.05


def test_owed_prefill_is_need() -> None:
    """A queue that is longer than the promise asks for help though nothing more comes."""
    balance = RoleBalancer(TERMS)
    calm = balance.observe(workers(2, 6), 0.0, 0.0)
    late = balance.observe([*workers(1, 6), PoolEngine("p", Role.PREFILL, 0.0, owed_s=60.0)], 0.0, 1.0)
    assert calm.prefill == 0
    assert late.prefill > 1


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
        {"min_overload_ratio": 0.5},
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
    gate = PairsOnlyGate()
    assert not gate.admits(candidates(None, "p"), 0)
    assert gate.admits(candidates(None, "p"), 1)
    assert gate.admits(candidates(), 0)
    assert gate.stream_objective is None
