"""Requests of a canary beside those of the standing pods: which are alike, and what is counted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from routing.canary.comparison import MAX_KINDS, STALE_S, PairedComparisons, ServedAttempt
from routing.canary.evidence import NO_EVIDENCE, DifferenceEvidence, TrialEvidence

CHAT = ServedAttempt("m", False, 1_000.0, 500.0, ttft_s=0.1, output_tokens=100, tpot_s=0.02)


def test_like_requests_are_compared() -> None:
    """Times and errors, each once: the second request of the canary finds nothing that is left."""
    compared = PairedComparisons()
    compared.observe_standing(CHAT, 0.0)
    compared.observe_canary(replace(CHAT, ttft_s=0.2, tpot_s=0.01), 1.0)
    found = compared.take()
    assert (found.ttft.above(1.5) > 1.0, found.tpot.below(0.9) > 1.0) == (True, True)
    assert found.errors == DifferenceEvidence(same=1)
    compared.observe_canary(CHAT, 2.0)
    assert compared.take() == NO_EVIDENCE


@pytest.mark.parametrize(
    "other",
    [{"group": 3}, {"model": "n"}, {"is_pair": True}, {"prompt_tokens": 4_000.0}, {"uncached_tokens": 50.0}],
    ids=lambda other: next(iter(other)),
)
def test_requests_of_another_kind_are_not(other: dict[str, object]) -> None:
    """Neither their times nor their errors."""
    compared = PairedComparisons()
    compared.observe_standing(replace(CHAT, **other), 0.0)
    compared.observe_canary(CHAT, 1.0)
    assert compared.take() == NO_EVIDENCE


def test_times_per_token_want_answers_of_like_length() -> None:
    """The time to the first token does not depend on it."""
    compared = PairedComparisons()
    compared.observe_standing(replace(CHAT, output_tokens=3_000), 0.0)
    compared.observe_canary(CHAT, 1.0)
    found = compared.take()
    assert (found.ttft.total, found.tpot.total) == (1, 0)


def test_a_request_long_ago_is_compared_with_nothing() -> None:
    """The load was another then."""
    compared = PairedComparisons()
    compared.observe_standing(CHAT, 0.0)
    compared.observe_canary(CHAT, STALE_S + 1.0)
    assert compared.take() == NO_EVIDENCE


@pytest.mark.parametrize(
    ("canary", "standing", "errors"),
    [
        (True, False, DifferenceEvidence(worse=1)),
        (False, True, DifferenceEvidence(better=1)),
        (True, True, DifferenceEvidence(same=1)),
    ],
)
def test_failures_are_compared_too(canary: bool, standing: bool, errors: DifferenceEvidence) -> None:
    """Those of both sides; a request that failed has no times."""
    compared = PairedComparisons()
    failed = replace(CHAT, failed=True, ttft_s=None, tpot_s=None)
    compared.observe_standing(failed if standing else CHAT, 0.0)
    compared.observe_canary(failed if canary else CHAT, 1.0)
    assert compared.take() == TrialEvidence(errors=errors)


def test_what_could_not_be_shared_is_kept() -> None:
    """It is added to what has come since."""
    compared = PairedComparisons()
    compared.add_quality(1)
    taken = compared.take()
    compared.add_quality(0)
    compared.give_back(taken)
    assert compared.take() == TrialEvidence(quality=DifferenceEvidence(worse=1, same=1))


def test_comparisons_are_counted_for_their_group() -> None:
    """And in the sum."""
    compared = PairedComparisons()
    for group in (2, 2, 5):
        compared.observe_standing(replace(CHAT, group=group), 0.0)
        compared.observe_canary(replace(CHAT, group=group, ttft_s=0.3), 1.0)
    found = compared.take()
    assert {group: part.ttft.total for group, part in found.by_group.items()} == {2: 2, 5: 1}
    assert (found.ttft.total, found.without(2).ttft.total, found.without(2).errors) == (
        3,
        1,
        DifferenceEvidence(same=1),
    )


def test_one_group_takes_no_place_of_another() -> None:
    """Whatever it sends, the last requests of the others are kept."""
    compared = PairedComparisons()
    compared.observe_standing(replace(CHAT, group=1), 0.0)
    for number in range(MAX_KINDS + 10):
        compared.observe_standing(replace(CHAT, group=2, model=str(number)), 0.0)
    compared.observe_canary(replace(CHAT, group=1), 1.0)
    assert compared.take().ttft.total == 1


def test_memory_is_bounded() -> None:
    """Of many kinds the oldest are forgotten."""
    compared = PairedComparisons()
    for number in range(MAX_KINDS + 10):
        compared.observe_standing(replace(CHAT, model=str(number), tpot_s=None), 0.0)
    for number, is_kept in ((0, False), (MAX_KINDS, True)):
        compared.observe_canary(replace(CHAT, model=str(number), tpot_s=None), 0.0)
        assert (compared.take().ttft.total == 1) is is_kept
