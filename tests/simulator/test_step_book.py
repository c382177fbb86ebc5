"""What an engine counts of its steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.engine import Engine
from simulator.profile import Profile
from simulator.sequence import MilestoneKind, Sequence
from simulator.step_book import StepBook

PROFILE = Profile(step_per_kv_token_s=0.0, step_per_sequence_s=0.0, max_num_batched_tokens=1000, max_num_seqs=8)


def played(profile: Profile, *sequences: Sequence) -> tuple[Engine, StepBook]:
    engine, book = Engine(profile), StepBook()
    engine.step_book = book
    for sequence in sequences:
        engine.submit(sequence, 0.0)
    while engine.next_event_at() is not None:
        engine.advance(engine.next_event_at() or 0.0)
    return engine, book


def test_every_gap_between_two_tokens_is_counted() -> None:
    """A gap for each token behind the first, of the length of a step."""
    _, book = played(PROFILE, Sequence("a", 100, 11), Sequence("b", 100, 6))
    assert sum(book.gaps.counts) == 15
    assert book.gaps.total == pytest.approx(15 * PROFILE.step_base_s, rel=0.1)
    assert book.drafts == 0


def test_a_long_prompt_shows_in_the_gaps_beside_it() -> None:
    """A step with a chunk of prefill is longer for all that decode, and holds its tokens."""
    engine, book = Engine(PROFILE), StepBook()
    engine.step_book = book
    engine.submit(Sequence("a", 100, 200), 0.0)
    engine.advance(0.5)
    engine.submit(Sequence("b", 900, 2), 0.5)
    while engine.next_event_at() is not None:
        engine.advance(engine.next_event_at() or 0.0)
    large = sum(count for limit, count in zip(book.tokens.limits, book.tokens.counts[1:], strict=True) if limit >= 512)
    assert large == 1
    slow = sum(count for limit, count in zip(book.gaps.limits, book.gaps.counts[1:], strict=True) if limit >= 0.075)
    assert slow == 1


def test_drafts_and_what_was_accepted_are_counted() -> None:
    """Acceptance is that of the profile."""
    _, book = played(replace(PROFILE, speculative_tokens=2, acceptance_rate=0.5), Sequence("a", 100, 201))
    assert book.draft_tokens == 2 * book.drafts
    assert book.accepted_tokens / book.drafts == pytest.approx(0.75, abs=0.02)


def test_acceptance_may_change_while_sequences_decode() -> None:
    """Tokens come at the new pace from then on, none is lost, and the blocks add up."""
    engine, book = Engine(replace(PROFILE, speculative_tokens=2, acceptance_rate=1.0)), StepBook()
    engine.step_book = book
    engine.submit(Sequence("a", 100, 1900), 0.0)
    engine.submit(Sequence("b", 50, 1700), 0.0)
    ends: dict[str, float] = {}
    for rate, at in ((0.0, 1.0), (0.5, 2.0), (1.0, 3.0), (0.0, 4.0)):
        engine.advance(at)
        engine.accept_drafts(rate, at)
        engine.audit()
    while engine.next_event_at() is not None:
        for each in engine.advance(engine.next_event_at() or 0.0):
            assert each.kind is MilestoneKind.FINISHED
            ends[each.sequence_id] = each.output_tokens
    engine.audit()
    assert ends == {"a": 1900, "b": 1700}
    assert engine.statistics().generation_tokens == 3600
    assert engine.statistics().kv_usage == 0.0
