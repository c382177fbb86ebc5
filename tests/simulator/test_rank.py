"""One engine in real time: tokens come, engines hang and come back, aborted sequences go."""

from __future__ import annotations

import asyncio

from simulator.profile import Profile
from simulator.rank import Bell, Progress, Rank, RankGroup
from simulator.sequence import Sequence

PATIENCE_S = 120.0

FAST = Profile(time_scale=100.0)


async def until_over(progress: Progress) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not progress.is_over:
            await progress.bell.wait()


async def test_tokens_come_until_the_end() -> None:
    """The bell rings for each step that brought something, and every token is counted."""
    rank, bell = Rank(FAST), Bell()
    progress = rank.submit(Sequence("a", 100, 20), bell)
    assert rank.in_flight == 1
    seen = [0]
    async with asyncio.timeout(PATIENCE_S):
        while not progress.is_over:
            await bell.wait()
            seen.append(progress.produced)
    assert seen == sorted(seen)
    assert progress.produced == 20
    assert progress.first is not None
    assert progress.end is not None
    assert progress.end.reason == "stop"
    assert rank.books.finished["stop"] == 1
    assert rank.in_flight == 0
    await asyncio.wait_for(rank.idle.wait(), PATIENCE_S)


async def test_an_engine_that_hangs_goes_on_where_it_stood() -> None:
    """Nothing is lost and nothing is made up for."""
    rank, bell = Rank(FAST), Bell()
    rank.set_speed(0.0)
    progress = rank.submit(Sequence("a", 100, 5), bell)
    other = Rank(FAST).submit(Sequence("b", 100, 5), Bell())
    await until_over(other)
    assert progress.produced == 0
    rank.set_speed(1.0)
    await until_over(progress)
    assert progress.produced == 5


async def test_a_slow_engine_is_last() -> None:
    """Of two engines with the same work; at its old speed again it gets done too."""
    slow, fast = Rank(FAST), Rank(FAST)
    slow.set_speed(1e-6)
    late = slow.submit(Sequence("a", 100, 200), Bell())
    await until_over(fast.submit(Sequence("a", 100, 200), Bell()))
    assert not late.is_over
    slow.set_speed(1.0)
    await until_over(late)


async def test_an_aborted_sequence_leaves_the_engine_idle() -> None:
    """By its next step; the consumer hears no more of it."""
    rank = Rank(FAST)
    rank.submit(Sequence("a", 100, 10_000), Bell())
    rank.abort("a")
    rank.abort("a")
    await asyncio.wait_for(rank.idle.wait(), PATIENCE_S)
    assert rank.engine.statistics().running == 0
    assert sum(rank.books.finished.values()) == 0


async def test_a_dead_engine_fails_what_it_had_and_what_comes() -> None:
    """Whoever waits is woken to learn it."""
    rank, bell = Rank(FAST), Bell()
    before = rank.submit(Sequence("a", 100, 10_000), bell)
    rank.kill()
    await asyncio.wait_for(bell.wait(), PATIENCE_S)
    after = rank.submit(Sequence("b", 100, 1), bell)
    assert before.has_failed
    assert after.has_failed


async def test_a_ring_that_no_one_received_is_not_lost() -> None:
    """Rung before the wait, once or often, it wakes one wait."""
    bell = Bell()
    bell.ring()
    bell.ring()
    await asyncio.wait_for(bell.wait(), PATIENCE_S)
    waiting = asyncio.create_task(bell.wait())
    done, _ = await asyncio.wait([waiting], timeout=0)
    assert not done
    bell.ring()
    await asyncio.wait_for(waiting, PATIENCE_S)


async def test_load_is_what_waits_more_than_what_runs() -> None:
    """As vLLM's own balancer counts."""
    rank = Rank(Profile(max_num_seqs=1))
    for name in "abc":
        rank.submit(Sequence(name, 10, 1000), Bell())
    assert rank.load == 4 * 2 + 1
    rank.stop()


async def test_ranks_that_step_together_wait_for_each_other() -> None:
    """A prompt of two seconds on one rank: the stream on the other has all but one of its tokens no sooner than it."""
    profile = Profile(time_scale=100.0, max_num_batched_tokens=100_000, prefill_tokens_per_s=1_000.0)
    group = RankGroup(profile.time_scale)
    one, other = Rank(profile, group), Rank(profile, group)
    stream, prompt = one.submit(Sequence("a", 1, 30), Bell()), other.submit(Sequence("b", 2_000, 1), Bell())
    await until_over(stream)
    await until_over(prompt)
    assert prompt.first is not None
    assert stream.end is not None
    # They begin together, or the prompt in the stream's next step: then that one takes as long.
    assert prompt.first.at > 2.0
    assert stream.end.at > prompt.first.at
    alone = Rank(profile)
    progress = alone.submit(Sequence("a", 1, 30), Bell())
    await until_over(progress)
    assert progress.end is not None
    assert progress.end.at - progress.submitted_at < 1.0
