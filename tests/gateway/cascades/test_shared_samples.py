"""Shadow samples through one Redis: all processes apply the same ones in one order, and again after a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cascade.calibration_file import Comparison, ReferenceOutcomes
from cascade.drift import SampleOutcome
from gateway.cascades.shadow_sampling import ShadowSampler
from gateway.cascades.shared_samples import BATCH, MAX_UNSENT, SharedSamples
from gateway.runtime.redis_location import parse_redis_url
from tests.gateway.cascades.test_frozen import Log
from tests.gateway.cascades.test_shadow_sampling import FILE, sampler

PLACE = parse_redis_url("redis://127.0.0.1:1/0")


class Streams:
    """Streams as Redis holds them."""

    def __init__(self) -> None:
        self.entries: dict[str, list[tuple[bytes, dict[bytes, bytes]]]] = {}
        self.is_away = False

    async def ping(self) -> None: ...

    async def expire(self, name: str, time: int) -> None: ...

    async def xadd(self, name: str, fields: Any, *, maxlen: int, approximate: bool) -> None:
        if self.is_away:
            raise ConnectionError
        own = self.entries.setdefault(name, [])
        own.append((str(len(own) + 1).encode(), {key.encode(): str(value).encode() for key, value in fields.items()}))

    async def xread(self, streams: Any, count: int) -> list[Any]:
        ((name, after),) = streams.items()
        found = [entry for entry in self.entries.get(name, []) if int(entry[0]) > int(after)][:count]
        return [[name.encode(), found]] if found else []


KNOWN = replace(FILE, reference=(ReferenceOutcomes(0, Comparison.TEXT, 1_000, 600, 30, 0),))


def connected(found: ShadowSampler) -> SharedSamples:
    shared = SharedSamples(PLACE, lambda: found.active_ids, found.apply_sample)
    shared._is_connected = True
    return shared


def seen(found: ShadowSampler) -> tuple[int, int, tuple[float, ...]]:
    status = found.guarantee_status("auto")
    assert status is not None
    return status.shadow_samples, status.worse, status.raised


async def test_all_processes_apply_the_same_samples() -> None:
    """Also one that starts later, which reads the stream from its beginning; more than one batch of them."""
    redis, one, other = Streams(), sampler(Log(), KNOWN), sampler(Log(), KNOWN)
    first, second = connected(one), connected(other)
    (state_id,) = one.active_ids
    assert other.active_ids == {state_id}
    for number in range(40):
        assert (first, second)[number % 2].publish(state_id, SampleOutcome(0, int(number % 8 == 0), number % 2 == 0))
    assert seen(one)[0] == 0
    for shared in (first, second, first):
        await shared.exchange(redis)
    assert seen(one) == seen(other)
    assert seen(one)[:2] == (40, 5)
    for _ in range(BATCH):
        await redis.xadd(next(iter(redis.entries)), {"i": 0, "o": 0}, maxlen=1, approximate=True)
    late = sampler(Log(), KNOWN)
    await connected(late).exchange(redis)
    await first.exchange(redis)
    assert seen(late) == seen(one)
    assert seen(late)[0] == 40 + BATCH


async def test_another_calibration_has_samples_of_its_own() -> None:
    """By its evidence, and by how answers are compared."""
    assert sampler(Log(), KNOWN).active_ids.isdisjoint(sampler(Log(), KNOWN, judge_model="judge").active_ids)
    found = sampler(Log(), KNOWN)
    found.apply_sample("another", SampleOutcome(0, 1))
    (state_id,) = found.active_ids
    found.apply_sample(state_id, SampleOutcome(7, 1))
    assert seen(found)[0] == 0


async def test_without_redis_samples_count_here() -> None:
    """What cannot be sent is not lost, and no more than so many wait."""
    redis, found = Streams(), sampler(Log(), KNOWN)
    shared = connected(found)
    (state_id,) = found.active_ids
    assert all(shared.publish(state_id, SampleOutcome(0, 0)) for _ in range(MAX_UNSENT))
    assert not shared.publish(state_id, SampleOutcome(0, 0))
    redis.is_away = True
    with pytest.raises(ConnectionError):
        await shared.exchange(redis)
    shared._apply_unsent()
    assert seen(found)[0] == MAX_UNSENT
    shared._is_connected = False
    assert not shared.publish(state_id, SampleOutcome(0, 0))


@pytest.mark.parametrize("fields", [{}, {"i": "x", "o": 0}, {"i": 0, "o": 7}, {"i": -1, "o": 0}])
async def test_other_entries_are_passed_over(fields: dict[str, Any]) -> None:
    """Of another version, or of something else."""
    redis, found = Streams(), sampler(Log(), KNOWN)
    shared = connected(found)
    (state_id,) = found.active_ids
    await redis.xadd(shared._name(state_id), fields, maxlen=1, approximate=True)
    await redis.xadd(shared._name(state_id), {"i": 0, "o": 1}, maxlen=1, approximate=True)
    await shared.exchange(redis)
    assert seen(found)[:2] == (1, 1)
