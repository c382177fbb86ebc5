"""Waiting for KV memory."""

from functools import partial
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.request import Api, Request
from scorers.kv_headroom import KvCacheHeadroom
from tests.scorers import columns

candidates_of = partial(columns.candidates_of, output_tokens=200)
REQUEST = Request("r", Api.CHAT, "m")


def test_where_there_is_room_it_says_nothing() -> None:
    """Nor where engines have not said how much they hold."""
    assert KvCacheHeadroom().score(REQUEST, candidates_of(2, kv_tokens=[0.0, 98_000.0])) == []
    assert KvCacheHeadroom().score(REQUEST, candidates_of(2, kv_tokens=[0.0, 1e9], kv_capacity=[inf, inf])) == []


def test_a_full_engine_costs_what_it_takes_to_empty() -> None:
    """By Little's law: the overflow's share of what is in use, times how long sequences stay."""
    seen = candidates_of(
        4,
        kv_tokens=[9_000.0, 9_800.0, 10_000.0, 9_999.0],
        kv_capacity=[10_000.0, 10_000.0, 10_000.0, inf],
        residence_s=[5.0, 5.0, 10.0, 5.0],
    )
    assert KvCacheHeadroom().score(REQUEST, seen) == [
        pytest.approx(200 / 9_000 * 5),
        pytest.approx(1_000 / 9_800 * 5),
        pytest.approx(1_200 / 10_000 * 10),
        0.0,
    ]


def test_what_fits_just_so_fits() -> None:
    """Need is prompt and expected answer; one token more waits."""
    just = candidates_of(2, kv_tokens=[8_800.0, 8_801.0], kv_capacity=[10_000.0, 10_000.0])
    assert KvCacheHeadroom().score(REQUEST, just)[0] == 0.0
    assert KvCacheHeadroom().score(REQUEST, just)[1] > 0.0
    assert KvCacheHeadroom().score(REQUEST, candidates_of(1, kv_tokens=[8_800.0], kv_capacity=[10_000.0])) == []


@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(1, 1e7), st.floats(0, 100)), min_size=1, max_size=5))
def test_a_wait_is_never_negative_nor_without_end(engines: list[tuple[float, float, float]]) -> None:
    """At most one residence for a prompt that fits at all, and never nonsense."""
    kv_tokens, kv_capacity, residence_s = map(list, zip(*engines, strict=True))
    seen = candidates_of(len(engines), kv_tokens=kv_tokens, kv_capacity=kv_capacity, residence_s=residence_s)
    for wait, residence in zip(KvCacheHeadroom().score(REQUEST, seen), residence_s, strict=False):
        assert 0 <= wait <= residence
