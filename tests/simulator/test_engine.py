"""The engine: what vLLM's users expect of it, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.engine import ABORTED, Engine
from simulator.profile import Profile
from simulator.sequence import Milestone, MilestoneKind, Sequence

FOREVER = 1e9


def ends(milestones: list[Milestone]) -> dict[str, Milestone]:
    return {m.sequence_id: m for m in milestones if m.kind is MilestoneKind.FINISHED}


def firsts(milestones: list[Milestone]) -> dict[str, Milestone]:
    return {m.sequence_id: m for m in milestones if m.kind is MilestoneKind.FIRST_TOKEN}


BIG = Profile(block_size=4, kv_capacity_tokens=4000)


def test_a_lone_sequence_takes_what_its_profile_says() -> None:
    """One prefill step, then one step a token, each a little longer by the KV it reads."""
    engine = Engine(BIG)
    engine.submit(Sequence("a", 1200, 3), 5.0)
    milestones = engine.advance(FOREVER)
    first = 5.0 + BIG.step_base_s + BIG.prefill_s(0, 1200)
    assert firsts(milestones)["a"].at == pytest.approx(first)
    second = first + BIG.step_base_s + BIG.decode_s(1, 1200)
    assert ends(milestones)["a"].at == pytest.approx(second + BIG.step_base_s + BIG.decode_s(1, 1201))


def test_prefill_costs_the_same_in_whatever_chunks() -> None:
    """The quadratic part is an integral: three chunks cost what one would."""
    assert sum(BIG.prefill_s(start, 1000) for start in (0, 1000, 2000)) == pytest.approx(BIG.prefill_s(0, 3000))
    assert BIG.prefill_s(2000, 1000) > BIG.prefill_s(0, 1000)


def test_a_long_prompt_is_computed_together_with_those_that_decode() -> None:
    """Chunks share steps with decoding, so the running answer goes on, only slower."""
    engine = Engine(replace(BIG, max_num_batched_tokens=100, max_num_seqs=10))
    engine.submit(Sequence("short", 10, 50), 0.0)
    engine.step(FOREVER)
    engine.submit(Sequence("long", 500, 1), engine.next_step_at() or 0.0)
    tokens = []
    while (report := engine.step(FOREVER)) and "long" not in report.tokens:
        tokens.append(report.tokens)
    assert tokens == [("short",)] * 6, "one step was in flight, then 99 + 99 + 99 + 99 + 99 of 500 tokens"


def test_a_second_turn_finds_prompt_and_answer() -> None:
    """The answer's blocks stay in the cache under the ids its caller named, and the last token is never a hit."""
    engine = Engine(BIG)
    chain = tuple(range(100, 120))
    engine.submit(Sequence("turn 1", 20, 21, chain[:5], answer_blocks=lambda count: chain[:count]), 0.0)
    engine.advance(10.0)
    engine.submit(Sequence("turn 2", 60, 1, chain[:15]), 10.0)
    engine.advance(20.0)
    engine.submit(Sequence("again", 60, 1, chain[:15]), 20.0)
    milestones = ends(engine.advance(FOREVER))
    assert milestones["again"].cached_tokens == 56, "the block with the last token is computed again"
    books = engine.statistics()
    assert (books.prefix_query_tokens, books.prefix_hit_tokens) == (140, 40 + 56)


def test_ids_beyond_the_prompt_name_the_answers_blocks() -> None:
    """A trace that knows the next turn's ids hands them over with this one."""
    engine = Engine(BIG)
    engine.submit(Sequence("turn 1", 18, 23, tuple(range(10))), 0.0)
    engine.advance(10.0)
    engine.submit(Sequence("turn 2", 60, 1, tuple(range(15))), 10.0)
    assert ends(engine.advance(FOREVER))["turn 2"].cached_tokens == 40


def test_without_ids_nothing_is_kept() -> None:
    """A prompt of which nothing is known neither hits nor stays."""
    engine = Engine(BIG)
    for turn in range(2):
        engine.submit(Sequence("a", 400, 1), turn * 10.0)
        assert ends(engine.advance(turn * 10.0 + 10.0))["a"].cached_tokens == 0


def test_an_engine_without_prefix_caching_finds_nothing() -> None:
    """The same prompt again is computed again."""
    engine = Engine(replace(BIG, caches_prefixes=False))
    for turn in range(2):
        engine.submit(Sequence("a", 41, 1, tuple(range(10))), turn * 10.0)
        assert ends(engine.advance(turn * 10.0 + 9.0))["a"].cached_tokens == 0


def test_twins_in_one_step_share() -> None:
    """Blocks count as cached from when they are planned: of two equal prompts in one step, the second one hits."""
    engine = Engine(replace(BIG, step_base_s=1.0))
    engine.submit(Sequence("before", 4, 1), 0.0)
    for name in ("first", "second"):
        engine.submit(Sequence(name, 41, 1, tuple(range(10))), 0.5)
    milestones = ends(engine.advance(FOREVER))
    assert milestones["first"].at == milestones["second"].at
    assert milestones["second"].cached_tokens == 40


def test_the_least_recently_used_prefix_goes_first_and_its_tail_before_its_head() -> None:
    """What is evicted is the older conversation's tail; its head still hits."""
    engine = Engine(replace(BIG, kv_capacity_tokens=80))
    engine.submit(Sequence("old", 33, 1, tuple(range(100, 108))), 0.0)
    engine.advance(10.0)
    engine.submit(Sequence("new", 33, 1, tuple(range(200, 208))), 10.0)
    engine.advance(20.0)
    engine.submit(Sequence("strange", 32, 1, tuple(range(300, 308))), 20.0)
    engine.advance(30.0)
    found = {}
    for name, start in (("old", 100), ("new", 200)):
        engine.submit(Sequence(name, 33, 1, tuple(range(start, start + 8))), 30.0)
        found[name] = ends(engine.advance(40.0))[name].cached_tokens
    assert found["old"] == 16, "20 blocks: 8 old, 8 new, 4 blank; 8 strange ones took the blank and 4 of the old tail"


def test_when_blocks_run_out_the_last_one_starts_over() -> None:
    """Preempted by recompute: it waits, comes back, finds what it had, and still produces every token once."""
    engine = Engine(replace(BIG, kv_capacity_tokens=80))
    for number, name in enumerate(("first", "second")):
        engine.submit(Sequence(name, 21, 30, tuple(range(100 * number, 100 * number + 5))), 0.0)
    tokens: list[str] = []
    preempted: list[Milestone] = []
    while report := engine.step(FOREVER):
        tokens += report.tokens
        preempted += [m for m in report.milestones if m.preemptions]
    assert tokens.count("first") == tokens.count("second") == 30
    assert [m.sequence_id for m in preempted] == ["second"]
    assert engine.statistics().preemptions == 1


def test_priority_reorders_who_waits_only_on_request() -> None:
    """Lower goes first with priority scheduling; otherwise who came first."""
    for by_priority, expected in ((False, ["running", "late", "early"]), (True, ["running", "early", "late"])):
        engine = Engine(replace(BIG, max_num_seqs=1, by_priority=by_priority))
        engine.submit(Sequence("running", 10, 5), 0.0)
        engine.submit(Sequence("late", 10, 1, priority=7), 0.0)
        engine.submit(Sequence("early", 10, 1, priority=-7), 0.0)
        assert list(ends(engine.advance(FOREVER))) == expected


def test_an_abort_frees_by_the_next_step() -> None:
    """The step in flight is the last that a sequence takes part in; what it sampled there is thrown away."""
    engine = Engine(BIG)
    engine.submit(Sequence("a", 40, 1000), 0.0)
    engine.advance(1.0)
    due = engine.next_step_at()
    assert due is not None
    before = engine.statistics().generation_tokens
    assert engine.abort("a", 1.0)
    assert not engine.abort("a", 1.0)
    [end] = engine.advance(FOREVER)
    assert (end.at, end.reason, end.output_tokens) == (due, ABORTED, before)
    assert engine.statistics().generation_tokens == before
    assert engine.statistics().kv_usage == 0.0
    assert not engine.abort("a", FOREVER)


def test_one_aborted_while_it_waits_was_never_admitted() -> None:
    """It leaves the queue at once and is told when the step in flight ends."""
    engine = Engine(replace(BIG, max_num_seqs=1))
    engine.submit(Sequence("running", 10, 50), 0.0)
    engine.submit(Sequence("waiting", 10, 50), 0.0)
    engine.abort("waiting", 0.0)
    assert engine.statistics().waiting == 0
    end = ends(engine.advance(FOREVER))["waiting"]
    assert (end.admitted_at, end.output_tokens, end.reason) == (None, 0, ABORTED)


def test_pooling_ends_with_its_prompt() -> None:
    """A sequence without output is prefill alone."""
    engine = Engine(BIG)
    engine.submit(Sequence("embed", 100, 0), 0.0)
    [end] = engine.advance(FOREVER)
    assert (end.kind, end.output_tokens) == (MilestoneKind.FINISHED, 0)
    assert engine.statistics().generation_tokens == 0


def test_kv_usage_grows_while_a_run_is_under_way() -> None:
    """The gauge does not wait for the run to end."""
    engine = Engine(BIG)
    engine.submit(Sequence("a", 4, 100), 0.0)
    engine.advance(0.1)
    early = engine.statistics().kv_usage
    engine.advance(1.0)
    assert 0.0 < early < engine.statistics().kv_usage < 0.11


@pytest.mark.parametrize(
    "sequence",
    [Sequence("a", 0, 1), Sequence("a", 1, -1), Sequence("a", 4000, 2), Sequence("here", 1, 1)],
    ids=["no prompt", "negative output", "too long", "twice"],
)
def test_what_cannot_run_is_rejected(sequence: Sequence) -> None:
    """Nothing that could never end is taken in."""
    engine = Engine(BIG)
    engine.submit(Sequence("here", 1, 10), 0.0)
    with pytest.raises(ValueError, match=r".+"):
        engine.submit(sequence, 0.0)


def test_time_does_not_run_backwards() -> None:
    """Steps that have ended are played before anything is added to them."""
    engine = Engine(BIG)
    engine.submit(Sequence("a", 1, 10), 0.0)
    with pytest.raises(ValueError, match="advance first"):
        engine.submit(Sequence("b", 1, 10), 5.0)
    with pytest.raises(ValueError, match="advance first"):
        engine.abort("a", 5.0)


def test_a_run_of_many_steps_is_cut_where_one_looks() -> None:
    """The step in flight is the first one to end after the time looked at, over a long run too."""
    engine = Engine(BIG)
    engine.submit(Sequence("a", 1, 3000), 0.0)
    for look in (0.5, 1.0, 10.0, 20.0, 30.0):
        engine.advance(look)
        due, steps = engine.next_step_at(), engine.statistics().steps
        assert due is not None
        assert look < due < look + 0.02
        assert engine.statistics().generation_tokens == steps


def test_to_the_very_end_of_a_step_is_that_step_and_no_more() -> None:
    """However the root of the series is rounded: from end to end is one step each."""
    engine = Engine(BIG)
    engine.submit(Sequence("a", 1, 3000), 0.0)
    for played in range(1, 2000):
        due = engine.next_step_at()
        assert due is not None
        engine.advance(due)
        assert engine.statistics().steps == played
    assert repr(engine) == "<Engine 1 running, 0 waiting, <PagedCache 0 held, 1 anonymous, 0 idle, 999 blank of 1000>>"


def hosted(**changes: float) -> Engine:
    """An engine whose cache holds one long prompt, and whose host holds several."""
    sizes = {"kv_capacity_tokens": 80, "host_kv_tokens": 400, "host_load_tokens_per_s": 100.0}
    return Engine(replace(BIG, **{**sizes, **changes}))  # type: ignore[arg-type]


def test_what_the_cache_has_evicted_is_loaded_from_the_host() -> None:
    """A prefix that another prompt has displaced counts as cached, and takes the load's time instead of prefill's."""
    for host_tokens, cached in ((400, 32), (0, 0), (16, 0)):
        engine = hosted(host_kv_tokens=host_tokens)
        for at, name in enumerate(("first", "filler", "again")):
            tokens, blocks = (79, ()) if name == "filler" else (33, tuple(range(8)))
            engine.submit(Sequence(name, tokens, 1, blocks), 10.0 * at)
            milestones = ends(engine.advance(10.0 * at + 9.0))
        assert milestones["again"].cached_tokens == cached
        assert engine.statistics().host_hit_tokens == cached
        assert (milestones["again"].at - 20.0 > 32 / 100.0) == bool(cached)


def test_others_run_while_the_host_loads() -> None:
    """A load occupies no step: who comes meanwhile is served, and an abort ends it."""
    engine = hosted(kv_capacity_tokens=160)
    engine.submit(Sequence("before", 33, 1, tuple(range(8))), 0.0)
    engine.advance(10.0)
    engine.submit(Sequence("filler", 159, 1), 10.0)
    engine.advance(20.0)
    engine.submit(Sequence("loads", 33, 1, tuple(range(8))), 20.0)
    assert not engine.advance(20.1)
    engine.submit(Sequence("runs", 10, 3), 20.1)
    milestones = ends(engine.advance(30.0))
    assert milestones["runs"].at < 20.3 < milestones["loads"].at
    engine.submit(Sequence("filler", 159, 1), 30.0)
    engine.advance(40.0)
    engine.submit(Sequence("loads", 33, 1, tuple(range(8))), 40.0)
    engine.advance(40.1)
    assert engine.abort("loads", 40.1)
    assert ends(engine.advance(FOREVER))["loads"].reason == ABORTED
    assert engine.statistics().kv_usage == 0.0


def test_accepted_drafts_shorten_answers_not_prompts() -> None:
    """With three drafted tokens of which half are accepted each step gains 1.875 on average, and costs the draft."""
    profile = replace(
        BIG, speculative_tokens=3, acceptance_rate=0.5, draft_s=0.002, step_per_kv_token_s=0.0, kv_capacity_tokens=8000
    )
    engine = Engine(profile)
    engine.submit(Sequence("a", 1200, 1501), 0.0)
    milestones = engine.advance(FOREVER)
    first_s = firsts(milestones)["a"].at
    assert first_s == pytest.approx(profile.step_base_s + profile.prefill_s(0, 1200))
    step_s = profile.step_s([], 1, 0)
    assert step_s == pytest.approx(profile.step_base_s + 0.002 + 1e-4 + 3 / profile.prefill_tokens_per_s)
    assert ends(milestones)["a"].at - first_s == pytest.approx(1500 / 1.875 * step_s, rel=0.01)
    assert engine.statistics().generation_tokens == 1501


def test_drafted_tokens_take_room_from_prompts() -> None:
    """A step's budget counts all tokens that are verified: fewer are left for a prompt's chunks."""
    steps = {}
    for drafted in (0, 7):
        engine = Engine(replace(BIG, max_num_batched_tokens=64, max_num_seqs=8, speculative_tokens=drafted))
        for number in range(4):
            engine.submit(Sequence(str(number), 4, 200), 0.0)
        engine.step(FOREVER)
        engine.submit(Sequence("prompt", 320, 1), engine.next_step_at() or 0.0)
        steps[drafted] = 0
        while (report := engine.step(FOREVER)) and "prompt" not in report.tokens:
            steps[drafted] += 1
    assert steps == {0: 6, 7: 10}, "one in flight, then 60 or 32 of 320 tokens a step"
