"""Whether to split: engine-seconds against prices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supply.load import EngineSpeed, TierLoad
from supply.split_advice import KvTransfer, PricedEngine, SplitAdvice, SplitVerdict, advise_split, choose_split
from tests.supply.builders import GOLD, work

TODAY = PricedEngine(EngineSpeed(kind="large"), 4.0)
CHEAP_DECODE = PricedEngine(replace(EngineSpeed(kind="memory"), step_base_s=0.014, prefill_tokens_per_s=3_000), 1.2)
FAST = KvTransfer(bytes_per_s=40e9)


def advice(requests: float, decode: PricedEngine = CHEAP_DECODE, transfer: KvTransfer = FAST) -> SplitAdvice:
    return advise_split([TierLoad(GOLD, work(requests, 2_000, 600))], TODAY, TODAY, decode, transfer)


def test_cheaper_decode_engines_pay_in_a_large_fleet() -> None:
    """The gain is in money, per hour and per token."""
    found = advice(200)
    assert found.verdict is SplitVerdict.SPLIT
    assert found.saving > 0.2
    assert found.split_per_million == pytest.approx((1 - found.saving) * found.colocated_per_million)
    assert found.price_ratio < 0.6
    assert "advice: split" in found.lines()


def test_seconds_are_engine_time() -> None:
    """Prefill is tokens over speed; decode counts each step once for all of its sequences."""
    found = advice(200)
    assert found.prefill_s == pytest.approx(200 * 2_000 / 12_000)
    assert found.decode_s < 200 * 600 * 0.012
    assert found.ratio == pytest.approx(found.prefill_s / found.decode_s)


def test_dear_decode_engines_gain_nothing_and_small_fleets_are_not_cut() -> None:
    """Three times the price; and five requests a second."""
    assert advice(200, decode=PricedEngine(TODAY.speed, 12.0)).verdict is SplitVerdict.NO_GAIN
    assert advice(5).verdict is SplitVerdict.TOO_SMALL


def test_equal_engines_gain_by_larger_batches_only() -> None:
    """Fewer decode engines make the same steps for more sequences; less than cheaper engines give."""
    assert 0.05 < advice(200, decode=TODAY).saving < advice(200).saving


def test_a_slow_link_is_named() -> None:
    """Two seconds for each prompt leave nothing of the TTFT."""
    assert advice(200, transfer=KvTransfer(bytes_per_s=33e6)).verdict in {SplitVerdict.TRANSFER, SplitVerdict.SPLIT}
    assert advice(200, transfer=KvTransfer(bytes_per_s=33e6)).split_per_hour > advice(200).split_per_hour


def test_no_traffic_is_no_advice() -> None:
    """All figures are zero."""
    found = advise_split([], TODAY, TODAY, CHEAP_DECODE, FAST)
    assert found.verdict is SplitVerdict.NO_TRAFFIC
    assert found.saving == 0.0


def test_each_kind_of_work_gets_the_engines_that_do_it_cheapest() -> None:
    """The large kind prefills, the one with memory decodes; which of them would do both costs the more."""
    kinds = {"large": TODAY, "memory": CHEAP_DECODE}
    tiers = [TierLoad(GOLD, work(200, 2_000, 600))]
    choice = choose_split(tiers, kinds, FAST)
    assert (choice.prefill, choice.decode) == ("large", "memory")
    costs = {
        name: advise_split(tiers, kind, TODAY, CHEAP_DECODE, FAST).colocated_per_hour for name, kind in kinds.items()
    }
    assert costs[choice.colocated] == min(costs.values()) == choice.advice.colocated_per_hour
