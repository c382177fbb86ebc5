"""The fit: observations made of a known engine give that engine back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.link import Link
from simulator.profile import Profile
from simulator.profiling.fitting import NotEnoughSeenError, fit, predicted_prefill_s
from simulator.profiling.observations import (
    DecodeSteps,
    IdlePrefill,
    Intrusion,
    Seen,
    Shape,
    Speculation,
    chunks_of,
    pooled,
)

TRUE = Profile(
    step_table=((1, 0.020), (16, 0.024), (128, 0.080), (512, 0.300)),
    step_per_sequence_s=0.000_8,
    step_per_kv_token_s=0.000_000_5,
    prefill_tokens_per_s=384 / 0.220,
    prefill_quadratic_tokens=5_000.0,
    max_num_batched_tokens=512,
    max_num_seqs=16,
    kv_capacity_tokens=12_800,
    block_size=32,
    request_s=0.005,
    request_token_s=0.000_002,
    request_step_s=0.003,
    wake_s=0.006,
)

SHAPE = Shape(32, 400, 2048, 16, 512)

LENGTHS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1900)


def idle(tokens: int) -> IdlePrefill:
    engine_s = TRUE.wake_s + predicted_prefill_s(TRUE, tokens)
    return IdlePrefill(tokens, engine_s + TRUE.request_handling_s(tokens), engine_s)


def decode(sequences: int, context: int) -> DecodeSteps:
    return DecodeSteps(sequences, sequences * context, TRUE.step_s([], sequences, sequences * context))


def intrusion(sequences: int, tokens: int, cached: int = 0) -> Intrusion:
    kv = 40 * sequences
    chunks = list(chunks_of(tokens, cached, 512 - sequences))
    with_it = sum(TRUE.step_s([chunk], sequences, kv) for chunk in chunks)
    without = len(chunks) * TRUE.step_s([], sequences, kv)
    extra_s = with_it - without + TRUE.step_delay_s(tokens + cached)
    return Intrusion(sequences, kv, tokens, cached, extra_s, with_it)


SEEN = Seen(
    SHAPE,
    tuple(idle(tokens) for tokens in LENGTHS),
    tuple(decode(sequences, context) for sequences in (1, 2, 4, 8, 16) for context in (30, 700)),
    (*(intrusion(sequences, tokens) for sequences in (1, 8) for tokens in (16, 128, 512, 1900)), intrusion(4, 1, 1888)),
)


def test_the_engine_comes_back() -> None:
    """Steps of any mixture that was not seen are predicted within two percent, and residuals are next to none."""
    fitted = fit(SEEN)
    for chunks, decoding, kv in [([], 3, 900), ([(0, 300)], 5, 4_000), ([(1024, 500)], 12, 9_000), ([(64, 40)], 0, 0)]:
        assert fitted.profile.step_s(chunks, decoding, kv) == pytest.approx(TRUE.step_s(chunks, decoding, kv), rel=0.02)
    assert max(fitted.spread.values()) < 0.01


def test_requests_and_sizes_come_back() -> None:
    """What arrivals cost, and the sizes that were observed."""
    profile = fit(SEEN).profile
    assert profile.request_s == pytest.approx(TRUE.request_s, rel=0.1)
    assert profile.wake_s == pytest.approx(TRUE.wake_s, rel=0.1)
    assert profile.request_step_s == pytest.approx(TRUE.request_step_s, rel=0.1)
    sizes = ("block_size", "kv_capacity_tokens", "max_num_seqs", "max_num_batched_tokens")
    assert [getattr(profile, name) for name in sizes] == [getattr(TRUE, name) for name in sizes]
    assert profile.caches_prefixes
    assert not fit(replace(SEEN, shape=replace(SHAPE, caches_prefixes=False))).profile.caches_prefixes


@pytest.mark.parametrize(("steps", "is_async"), [(1.0, False), (2.0, True)], ids=["plain", "async"])
def test_prompts_that_wait_a_step_more_show_asynchronous_scheduling(steps: float, is_async: bool) -> None:
    """What arrives as a step begins waits for it; planned ahead, for the next one too."""

    def waited(one: Intrusion) -> Intrusion:
        step_s = TRUE.step_s([], one.sequences, int(one.kv_tokens))
        own_s = step_s + one.extra_s + TRUE.request_handling_s(one.tokens)
        return replace(one, client_s=own_s + steps * step_s)

    shorts = tuple(waited(intrusion(sequences, tokens)) for sequences in (1, 4, 8) for tokens in (16, 100))
    others = tuple(one for one in SEEN.intrusions if one.tokens > 128 or one.cached)
    assert fit(replace(SEEN, intrusions=(*others, *shorts))).profile.async_scheduling == is_async


def test_noise_shows_in_the_spread() -> None:
    """Decodes that are one tenth too slow and too fast by turns leave about that."""
    wrong = tuple(
        replace(one, step_s=one.step_s * (0.9 if number % 2 else 1.1)) for number, one in enumerate(SEEN.decode)
    )
    assert 0.03 < fit(replace(SEEN, decode=wrong)).spread["decode"] < 0.15


def test_without_the_engines_metrics_decodes_and_clients_suffice() -> None:
    """An engine that shows no histograms is fitted by what the client saw."""
    blind = replace(SEEN, idle=tuple(replace(one, engine_s=None) for one in SEEN.idle))
    profile = fit(blind).profile
    predicted = profile.request_handling_s(512) + predicted_prefill_s(profile, 512)
    assert predicted == pytest.approx(idle(512).client_s, rel=0.1)


def test_too_little_is_an_error() -> None:
    """One length or one batch size is no curve."""
    with pytest.raises(NotEnoughSeenError, match="three lengths"):
        fit(replace(SEEN, idle=SEEN.idle[:2]))
    with pytest.raises(NotEnoughSeenError, match="two batch sizes"):
        fit(replace(SEEN, decode=SEEN.decode[:1]))


def test_observations_are_kept_as_json() -> None:
    """So that a later fit needs no pod."""
    assert Seen.from_json(SEEN.to_json()) == SEEN


def test_two_looks_at_an_engine_are_fitted_as_one() -> None:
    """A tenth slower in the second look: the fit lies between, and the residuals tell."""
    slow = replace(
        SEEN,
        decode=tuple(replace(one, step_s=one.step_s * 1.1) for one in SEEN.decode),
        link=Link(1_000, 2e6, 0.001),
    )
    fitted = fit(pooled(SEEN, slow))
    expected = TRUE.step_s([], 8, 8 * 700)
    assert expected < fitted.profile.step_s([], 8, 8 * 700) < 1.1 * expected
    assert 0.02 < fitted.spread["decode"] < 0.1
    assert pooled(SEEN, slow).link == slow.link


def test_steps_of_an_engine_that_drafts_come_back() -> None:
    """A step of 8 sequences with 3 drafted tokens each is one of 32 tokens."""
    engine = replace(TRUE, speculative_tokens=3, acceptance_rate=0.5)
    decodes = tuple(
        DecodeSteps(count, count * context, engine.step_s([], count, count * context))
        for count in (1, 2, 4, 8, 16)
        for context in (30, 700)
    )
    shape = replace(SHAPE, speculation=Speculation(3, 0.5))
    fitted = fit(replace(SEEN, shape=shape, decode=decodes, intrusions=())).profile
    assert (fitted.speculative_tokens, fitted.acceptance_rate) == (3, 0.5)
    for sequences in (1, 3, 8):
        assert fitted.step_s([], sequences, 2_000) == pytest.approx(engine.step_s([], sequences, 2_000), rel=0.03)
