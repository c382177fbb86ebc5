"""Shadow samples shared by all workers and gateways of one Redis: one stream for each calibration that is in use.

A sample is appended to the stream, and applied when it is read back, by every process in the order of the stream: all
of them hold the same thresholds, windows and learned reference. A process that starts reads the stream from its
beginning, so that what was learned survives restarts. Without Redis samples are applied where they were taken, and not
shared. A stream holds outcomes only, `MAX_SAMPLES` of them or a few more, and expires `KEPT_S` after the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, cast

from cascade.drift import SampleOutcome
from gateway.runtime.guard import raise_if_cancelled, restarted
from gateway.runtime.redis_client import connect_redis
from gateway.runtime.redis_location import RedisLocation

KEY = "hearth:cascade-samples:"
MAX_SAMPLES = 20_000
KEPT_S = 30 * 24 * 3_600
MAX_UNSENT = 1_000
"""Samples that wait to be sent; more are applied here alone."""
BATCH = 1_000
EXCHANGE_S = 1.0
TIMEOUT_S = 1.0
RECONNECT_S = 1.0

ApplySample = Callable[[str, SampleOutcome], None]
"""Applies a sample of the calibration with this id."""


class StreamClient(Protocol):
    """The commands of Redis that are used."""

    async def ping(self) -> Any: ...
    async def xadd(self, name: str, fields: Any, *, maxlen: int, approximate: bool) -> Any: ...
    async def xread(self, streams: Any, count: int) -> Any: ...
    async def expire(self, name: str, time: int) -> Any: ...


class SharedSamples:
    """Exchanges samples through Redis; one per gateway process. `run` keeps it connected."""

    def __init__(self, place: RedisLocation, active: Callable[[], set[str]], apply: ApplySample) -> None:
        """`active` returns the ids of the calibrations in use."""
        self._place = place
        self._active = active
        self._apply = apply
        self._unsent: list[tuple[str, SampleOutcome]] = []
        self._read_up_to: dict[str, bytes | str] = {}
        self._is_connected = False

    def publish(self, calibration_id: str, sample: SampleOutcome) -> bool:
        """Take a sample to send. Returns False where it must be applied here: Redis is away, or too many wait."""
        if not self._is_connected or len(self._unsent) >= MAX_UNSENT:
            return False
        self._unsent.append((calibration_id, sample))
        return True

    @restarted("cascade samples")
    async def run(self) -> None:
        """Exchange samples until cancelled."""
        while True:
            try:
                async with connect_redis(self._place, answer_s=TIMEOUT_S) as client:
                    async with asyncio.timeout(TIMEOUT_S):
                        await client.ping()
                    self._is_connected = True
                    while True:
                        await self.exchange(cast("StreamClient", client))
                        await asyncio.sleep(EXCHANGE_S)
            except Exception:  # noqa: BLE001 - Redis may be gone in any way
                raise_if_cancelled()
            finally:
                self._is_connected = False
                self._apply_unsent()
            await asyncio.sleep(RECONNECT_S)

    def _apply_unsent(self) -> None:
        """Apply what could not be sent; it is then not shared."""
        unsent, self._unsent = self._unsent, []
        for calibration_id, sample in unsent:
            self._apply(calibration_id, sample)

    async def exchange(self, client: StreamClient) -> None:
        """Send the samples that wait, then read and apply new ones. Raises what the client raises."""
        while self._unsent:
            calibration_id, sample = self._unsent[0]
            name = self._name(calibration_id)
            fields = {"i": sample.index, "o": sample.outcome, "s": int(sample.is_surest)}
            async with asyncio.timeout(TIMEOUT_S):
                await client.xadd(name, fields, maxlen=MAX_SAMPLES, approximate=True)
                await client.expire(name, KEPT_S)
            del self._unsent[0]
        active = self._active()
        # A calibration that comes back into use later is read from the beginning.
        self._read_up_to = {known: at for known, at in self._read_up_to.items() if known in active}
        for calibration_id in sorted(active):
            while await self._read(client, calibration_id):
                pass

    async def _read(self, client: StreamClient, calibration_id: str) -> bool:
        """Read and apply a batch. Returns whether there may be more."""
        place = {self._name(calibration_id): self._read_up_to.get(calibration_id, "0")}
        async with asyncio.timeout(TIMEOUT_S):
            entries = list(_entries(await client.xread(place, count=BATCH)))
        for entry_id, fields in entries:
            self._read_up_to[calibration_id] = entry_id
            if (sample := _sample(fields)) is not None:
                self._apply(calibration_id, sample)
        return len(entries) == BATCH

    def _name(self, calibration_id: str) -> str:
        return f"{self._place.prefix}{KEY}{calibration_id}"


def _entries(found: Any) -> Iterator[tuple[bytes | str, Mapping[Any, Any]]]:
    """Yield the entries of a reply: a list of streams with theirs, or a mapping."""
    streams = found.values() if isinstance(found, Mapping) else (entries for _, entries in found or ())
    for entries in streams:
        yield from entries


def _sample(fields: Mapping[Any, Any]) -> SampleOutcome | None:
    """Return the sample of an entry, of older gateways without `s`; None for anything else than a sample."""
    named = {name: fields.get(name.encode(), fields.get(name)) for name in ("i", "o", "s")}
    try:
        index, outcome, surest = int(named["i"]), int(named["o"]), int(named["s"] or 0)
    except (TypeError, ValueError):
        return None
    return SampleOutcome(index, outcome, surest == 1) if index >= 0 and outcome in (-1, 0, 1) else None
