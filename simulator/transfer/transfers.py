"""A pod's KV transfers with other pods: holds what is to be fetched, fetches what others hold.

Between the engines' ranks and the side channel. Independent of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aiohttp

from simulator.profile import Profile
from simulator.rank import Rank
from simulator.sequence import Fetch, Milestone
from simulator.transfer.connector import Connector, PodAddress, Subject
from simulator.transfer.example import Example
from simulator.transfer.kv_transfer import Bootstrap, KvFile, KvTransfer, Wire
from simulator.transfer.mooncake import Mooncake
from simulator.transfer.nixl import Nixl
from simulator.transfer.side_channel import SideChannel, fetch
from simulator.transfer.wiring import Wiring


class CameNotError(Exception):
    """Another pod's KV could not be fetched."""


@dataclass(frozen=True, slots=True)
class _Held:
    rank: Rank
    sequence_id: str


class Transfers:
    """One pod's. Made before the pod listens, of use once it is opened."""

    def __init__(self, wiring: Wiring, profile: Profile, kill: Callable[[], None]) -> None:
        """`kill` ends the engines: what a poisoned request does to them."""
        self.wiring = wiring
        self.engine_id = str(uuid4())
        self.fetched_tokens = 0
        self._profile = profile
        self._kill = kill
        self._errands: dict[str, tuple[KvTransfer, Subject]] = {}
        self._held: dict[str, _Held] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        waits = wiring.connector == "MooncakeConnector"
        self.side_channel = SideChannel(wiring.link, profile.time_scale, self._let_go, waits=waits)
        self._connector: Connector | None = None
        self.host = ""

    async def open(self, host: str) -> None:
        """Listen for other pods."""
        self.host = host
        await self.side_channel.open(host, self.wiring.side_port)
        address = PodAddress(self.engine_id, self.wiring.role, host, self.side_channel.port, self._profile.block_size)
        self._connector = make_connector(self.wiring, address)

    def close(self) -> None:
        """Nothing goes on."""
        self.side_channel.close()
        for task in self._fetching.values():
            task.cancel()

    # -- what a rank tells -----------------------------------------------------------------------------------------

    def begin(self, params: Mapping[str, Any], subject: Subject) -> KvTransfer:
        """A request comes in. Raises `RuleBroken` where its parameters are more than the engine survives."""
        if self._connector is None:
            raise RuntimeError("not open")
        kv_transfer = self._connector.read(params, subject)
        self._errands[subject.sequence_id] = kv_transfer, subject
        return kv_transfer

    def fetch(self, rank: Rank, wanted: Fetch) -> None:
        """A sequence has its blocks."""
        kv_transfer, _ = self._errands[wanted.sequence_id]
        if kv_transfer.is_poisoned:
            return
        task = asyncio.get_running_loop().create_task(self._fetch(rank, wanted, kv_transfer))
        self._fetching[wanted.sequence_id] = task
        task.add_done_callback(lambda _: self._fetching.pop(wanted.sequence_id, None))

    def ended(self, rank: Rank, end: Milestone) -> None:
        """Offer the KV of a sequence that has ended by itself."""
        kv_transfer, _ = self._errands.get(end.sequence_id, (None, None))
        if kv_transfer is None:
            return
        if kv_transfer.saves_to is not None:
            kv_transfer.saves_to.touch()
        if kv_transfer.held_as is not None:
            self._held[kv_transfer.held_as] = _Held(rank, end.sequence_id)
            self.side_channel.hold(kv_transfer.held_as, self.wiring.lease_s)

    def gave_up(self, sequence_id: str) -> None:
        """Its client has gone."""
        kv_transfer, _ = self._errands.pop(sequence_id, (None, None))
        if (task := self._fetching.pop(sequence_id, None)) is not None:
            task.cancel()
        if kv_transfer is not None and kv_transfer.is_poisoned:
            self._kill()

    def forget(self, sequence_id: str) -> None:
        """Drop the state of a sequence whose response has been sent."""
        self._errands.pop(sequence_id, None)

    def returned(self, sequence_id: str, cached_tokens: int) -> dict[str, Any] | None:
        """`kv_transfer_params` of the answer."""
        known = self._errands.get(sequence_id)
        if known is None or self._connector is None:
            return None
        return self._connector.returned(*known, cached_tokens)

    def who(self) -> dict[str, Any]:
        """What Mooncake's bootstrap server says at /query."""
        worker = f"tcp://{self.host}:{self.side_channel.port}"
        return {"0": {"engine_id": self.engine_id, "worker_addr": {"0": {"0": worker}}}}

    # -- bringing KV over ------------------------------------------------------------------------------------------

    def _let_go(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            held.rank.let_go(held.sequence_id)

    async def _fetch(self, rank: Rank, wanted: Fetch, kv_transfer: KvTransfer) -> None:
        try:
            await self._bring(kv_transfer, wanted.tokens)
        except CameNotError:
            if self.wiring.recomputes:
                rank.end_fetch(wanted.sequence_id, came=False)
            else:
                rank.fail(wanted.sequence_id)
            return
        self.fetched_tokens += wanted.tokens
        rank.end_fetch(wanted.sequence_id, came=True)

    async def _bring(self, kv_transfer: KvTransfer, tokens: int) -> None:
        scale, source = self._profile.time_scale, kv_transfer.source
        try:
            match source:
                case KvFile():
                    await asyncio.sleep(self.wiring.link.wire_s(tokens) / scale)
                case Wire():
                    await fetch(source.host, source.port, source.name, tokens)
                case Bootstrap():
                    await fetch(*await _worker_of(source), source.name, tokens)
        except (OSError, ValueError, KeyError, aiohttp.ClientError):
            await asyncio.sleep(self.wiring.handshake_s / scale)
            raise CameNotError from None


async def _worker_of(source: Bootstrap) -> tuple[str, int]:
    """Where a prefilling pod's worker listens. Raises what HTTP raises, KeyError where it is another engine."""
    async with aiohttp.ClientSession() as client, client.get(f"{source.url}/query") as answer:
        ranks = await answer.json()
    named = {each["engine_id"]: each for each in ranks.values()}
    worker = named[source.engine_id]
    host, _, port = worker["worker_addr"]["0"]["0"].removeprefix("tcp://").rpartition(":")
    return host, int(port)


def make_connector(wiring: Wiring, address: PodAddress) -> Connector:
    """The connector that a wiring names. Raises ValueError for an unknown name."""
    match wiring.connector:
        case "NixlConnector" | "NixlPullConnector":
            return Nixl(address)
        case "MooncakeConnector":
            return Mooncake(address)
        case "ExampleConnector" if wiring.folder is not None:
            return Example(address, wiring.folder)
    raise ValueError(f"connector: {wiring.connector} is none that a simulated pod has")
