"""Replays on engines that step together: what it is worth that the gateway knows it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from simulator.profile import Profile
from simulator.records import Record
from simulator.replay import Setting, play
from simulator.spread import spread_of
from simulator.traces import Arrival, Trace, make_trace

TTFT_S, PROMPT_TOKENS_PER_S, TPOT_S = 2.0, 4_000.0, 0.05
"""The objective: two seconds and a second for each 4,000 tokens of the prompt, then a token every 50 ms."""


def chats_and_documents(seed: int, seconds: float) -> Trace:
    """Six chats a second, and six documents in ten seconds whose prefill takes 0.7 to 4 s."""
    random = Random(seed)
    kinds = ((6.0, (100, 1_500), (150, 500)), (0.6, (8_000, 40_000), (20, 100)))
    arrivals = []
    for rate, prompt, answer in kinds:
        at_s = 0.0
        while (at_s := at_s + random.expovariate(rate)) < seconds:
            arrivals.append(Arrival(at_s, random.randint(*prompt), random.randint(*answer)))
    return make_trace("chats and documents", sorted(arrivals, key=lambda arrival: arrival.at_s), 16)


def goodput(records: Sequence[Record]) -> float:
    return sum(map(is_good, records)) / len(records)


def is_good(record: Record) -> bool:
    assert record.ttft_s is not None
    return record.ttft_s <= TTFT_S + record.prompt_tokens / PROMPT_TOKENS_PER_S and (record.tpot_s or 0.0) <= TPOT_S


def error_s(records: Sequence[Record]) -> float:
    """By how much the first token of nine in ten requests was predicted too early or too late, at most."""
    pairs = ((record.predicted_ttft_s, record.ttft_s) for record in records)
    return spread_of([abs(predicted - actual) for predicted, actual in pairs if predicted and actual]).p90


@pytest.mark.parametrize("seed", [1, 2])
def test_a_gateway_that_knows_the_groups_keeps_more_objectives(seed: int) -> None:
    """Eight engines in two groups of four, a minute: documents are put where prefill stalls fewest streams, or beside
    other prefill, and first tokens are predicted in the steps of the whole group.
    """
    trace = chats_and_documents(seed, 60.0)
    blind, known = (
        play(trace, Setting("warm", 8, Profile(), seed, group_size=4, knows_groups=knows)).records
        for knows in (False, True)
    )
    assert goodput(known) >= goodput(blind) + 0.05
    assert error_s(known) <= error_s(blind) / 2
