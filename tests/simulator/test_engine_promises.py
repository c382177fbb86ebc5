"""The engine: what it promises whatever comes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine import Engine
from simulator.profile import Profile
from simulator.sequence import Milestone, MilestoneKind, Sequence
from tests.simulator.plain_engine import PlainEngine

SMALL = Profile(
    prefill_tokens_per_s=1000.0,
    prefill_quadratic_tokens=500.0,
    step_base_s=0.01,
    step_per_sequence_s=0.001,
    step_per_kv_token_s=0.0001,
    max_num_batched_tokens=24,
    max_num_seqs=6,
    kv_capacity_tokens=96,
    block_size=4,
)
"""So small that everything runs out all the time."""

FOREVER = 1e9


@dataclass(frozen=True)
class Submit:
    at: float
    sequence: Sequence


@dataclass(frozen=True)
class Abort:
    at: float
    sequence_id: str


Script = list[Submit | Abort]


@st.composite
def scripts(draw: st.DrawFn, with_prefixes: bool = True) -> Script:
    """Sequences of three conversations, which share prefixes, and aborts of some of them."""
    script: Script = []
    for number in range(draw(st.integers(1, 14))):
        prompt_tokens = draw(st.integers(1, 60))
        conversation, shared = draw(st.integers(0, 2)), draw(st.integers(0, 15))
        blocks = tuple(
            1000 * (conversation if index < shared else 10 + number) + index for index in range(prompt_tokens // 4)
        )
        sequence = Sequence(
            sequence_id=str(number),
            prompt_tokens=prompt_tokens,
            output_tokens=draw(st.integers(0, min(30, 97 - prompt_tokens))),
            blocks=blocks if with_prefixes and draw(st.integers(0, 9)) else (),
            priority=draw(st.integers(-1, 1)),
        )
        at = draw(st.floats(0, 2))
        script.append(Submit(at, sequence))
        if draw(st.integers(0, 4)) == 0:
            script.append(Abort(at + draw(st.floats(0, 1)), str(number)))
    return sorted(script, key=lambda event: event.at)


profiles = st.builds(
    replace,
    st.just(SMALL),
    by_priority=st.booleans(),
    kv_capacity_tokens=st.sampled_from([96, 160, 4000]),
    max_num_seqs=st.sampled_from([1, 3, 24]),
    step_per_kv_token_s=st.sampled_from([0.0, 0.0001]),
    wake_s=st.sampled_from([0.0, 0.05]),
    step_table=st.sampled_from([(), ((1, 0.01),), ((1, 0.01), (4, 0.02), (24, 0.03))]),
    async_scheduling=st.booleans(),
)


speculating = st.builds(
    replace,
    profiles,
    max_num_batched_tokens=st.just(96),
    speculative_tokens=st.sampled_from([0, 1, 3]),
    acceptance_rate=st.sampled_from([0.0, 0.55, 1.0]),
    draft_s=st.sampled_from([0.0, 0.004]),
    step_per_kv_token_s=st.just(0.0),
    kv_capacity_tokens=st.sampled_from([100, 160, 4000]),
)
"""A step's time is a mean over its tokens then: with time for KV the plain engine would be off by a part of a step."""

hosts = st.builds(
    replace,
    profiles | speculating,
    host_kv_tokens=st.sampled_from([0, 40, 4000]),
    host_load_tokens_per_s=st.sampled_from([50.0, 5_000.0]),
)
"""Some with a tier in the host's memory, which the plain engine does not have."""


def apply(engine: Engine, event: Submit | Abort) -> None:
    if isinstance(event, Submit):
        engine.submit(event.sequence, event.at)
    else:
        engine.abort(event.sequence_id, event.at)


def play_fast(engine: Engine, script: Script) -> list[Milestone]:
    milestones: list[Milestone] = []
    for event in script:
        milestones += engine.advance(event.at)
        apply(engine, event)
    return milestones + engine.advance(FOREVER)


def play_stepwise(engine: Engine, script: Script) -> tuple[list[Milestone], dict[str, int]]:
    """Milestones, and how many tokens each sequence was seen to produce."""
    milestones: list[Milestone] = []
    produced = {event.sequence.sequence_id: 0 for event in script if isinstance(event, Submit)}
    ends: list[Submit | Abort | None] = [*script, None]
    for event in ends:
        while report := engine.step(event.at if event else FOREVER):
            milestones += report.milestones
            for sequence_id in report.tokens:
                produced[sequence_id] += 1
            ended = {milestone.sequence_id for milestone in milestones if milestone.reason}
            assert all(engine.emitted(name) == count for name, count in produced.items() if name not in ended)
            engine.audit()
        if event:
            apply(engine, event)
    return milestones, produced


@given(scripts(), hosts)
def test_both_ways_to_play_agree_to_the_last_bit(script: Script, profile: Profile) -> None:
    """Whole runs and single steps give the same milestones at the same times, and the same books."""
    fast, slow = Engine(profile), Engine(profile)
    milestones, produced = play_stepwise(slow, script)
    assert play_fast(fast, script) == milestones
    assert fast.statistics() == slow.statistics()
    ends = {milestone.sequence_id: milestone for milestone in milestones if milestone.reason}
    assert {name: end.output_tokens for name, end in ends.items()} == produced
    assert fast.statistics().generation_tokens == sum(produced.values())


@settings(max_examples=200)
@given(scripts(), profiles | speculating)
def test_the_plain_engine_says_the_same(script: Script, profile: Profile) -> None:
    """Sums, heaps and series change nothing against playing every sequence in every step."""
    engine, plain = Engine(profile), PlainEngine(profile)
    milestones = play_fast(engine, script)
    for event in script:
        plain.play_until(event.at)
        if isinstance(event, Submit):
            plain.submit(event.sequence, event.at)
        else:
            plain.abort(event.sequence_id)
    plain.play_until(FOREVER)
    assert sorted(
        (m.sequence_id, m.kind, m.output_tokens, m.cached_tokens, m.preemptions) for m in milestones
    ) == sorted((e.sequence_id, e.kind, e.output_tokens, e.cached_tokens, e.preemptions) for e in plain.events)
    times = {(m.sequence_id, m.kind): m.at for m in milestones}
    assert times == pytest.approx({(e.sequence_id, e.kind): e.at for e in plain.events}, rel=1e-9)


@given(scripts(), hosts)
def test_whatever_comes_everything_ends_and_nothing_is_held(script: Script, profile: Profile) -> None:
    """Every sequence submitted ends once, time never runs backwards, and the cache is nobody's in the end."""
    engine = Engine(profile)
    milestones = play_fast(engine, script)
    ended = [milestone.sequence_id for milestone in milestones if milestone.kind is MilestoneKind.FINISHED]
    assert sorted(ended) == sorted(event.sequence.sequence_id for event in script if isinstance(event, Submit))
    assert [milestone.at for milestone in milestones] == sorted(milestone.at for milestone in milestones)
    rest = engine.statistics()
    assert (rest.running, rest.waiting, rest.kv_usage) == (0, 0, 0.0)
    assert engine.next_step_at() is None
    assert engine.next_event_at() is None
    engine.audit()
    engine.forget_prefixes()
    assert engine.statistics().kv_usage == 0.0


@given(scripts(), hosts)
def test_no_step_holds_more_than_there_is(script: Script, profile: Profile) -> None:
    """Whenever one looks: capacity and batch size are kept, and the next event comes no earlier than was said."""
    engine = Engine(profile)
    for event in script:
        while report := engine.step(event.at):
            books = engine.statistics()
            assert 0.0 <= books.kv_usage <= 1.0
            assert books.running <= profile.max_num_seqs
            assert len(set(report.tokens)) <= profile.max_num_seqs
            assert max(map(report.tokens.count, report.tokens), default=1) <= 2 * profile.decode_tokens
        apply(engine, event)
    while (expected := engine.next_event_at()) is not None:
        assert all(milestone.at >= expected for milestone in engine.advance(expected))


@given(scripts(), st.lists(st.floats(0, 4), max_size=20))
def test_looking_often_changes_nothing(script: Script, looks: list[float]) -> None:
    """However often and wherever a run is interrupted to look, the same comes out."""
    engine, watched = Engine(SMALL), Engine(SMALL)
    seen: list[Milestone] = []
    for at, event in sorted([(look, None) for look in looks] + [(e.at, e) for e in script], key=lambda pair: pair[0]):
        seen += watched.advance(at)
        assert (due := watched.next_step_at()) is None or due > at
        watched.statistics()
        if event:
            apply(watched, event)
    assert seen + watched.advance(FOREVER) == play_fast(engine, script)
