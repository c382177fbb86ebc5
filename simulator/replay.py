"""Plays a trace in virtual time: the real spine, router and scorers in front of simulated engines, the clock jumping.

Nothing here decides where a request goes; what the router sees of a request is what the gateway would know of it, its
prefix and its length, never how long the answer will be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Literal

from gateway.pipeline.record import Outcome
from routing.blocks import Prompt
from routing.request import Api, Request
from simulator.clock import run_virtually
from simulator.exchange import Exchange
from simulator.lockstep import Lockstep
from simulator.profile import Profile
from simulator.records import Progress, Record, Replay
from simulator.replica import MODEL, MakeRoom, Replica
from simulator.sequence import Sequence
from simulator.split import Split
from simulator.traces import Arrival, Trace
from simulator.virtual_pod import VirtualPod


@dataclass(frozen=True, slots=True)
class Fault:
    """For a time, updates between gateways are lost (`drop`), held back (`stall`), or those of the first gateway are
    lost (`isolate`). None: nothing happens.
    """

    kind: Literal["none", "drop", "stall", "isolate"]
    begins_s: float = 0.0
    ends_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a trace is played onto."""

    routing: str = "warm"
    pods: int = 4
    profile: Profile = field(default_factory=Profile)
    seed: int = 0
    deadline_s: float = 600.0
    """From arrival to first token; a request that waits longer has failed."""
    replicas: int = 1
    """Gateways that share the pods; each request comes to one of them by a draw."""
    split: Split | None = None
    """How prefill and decode are shared; None: independent pods."""
    sync_delay_s: float | None = 0.005
    """Delay in seconds of updates between gateways; None without replica sync."""
    knows_caches: bool = False
    """Whether gateways see what engines hold, exactly and at once: the bound of a precise prefix index."""
    fault: Fault | None = None
    """What happens to the exchange between gateways; heartbeats and timeouts run then as in production."""
    profiles: tuple[Profile, ...] = ()
    """Of the first pods, one each, where they differ from `profile`; all with blocks of the same size."""
    make_room: MakeRoom | None = None
    """The admission queue of each gateway; None: one without waiting."""
    group_size: int = 1
    """So many pods in turn step together, as data-parallel ranks with expert parallelism do."""
    knows_groups: bool = True
    """Whether gateways know which pods step together."""

    def group_of(self, number: int) -> str | None:
        """Return the name of the group of the pod with this number; None where each steps alone."""
        return f"group-{number // self.group_size}" if self.group_size > 1 else None

    def profile_of(self, number: int) -> Profile:
        """Return the profile of the pod with this number."""
        return self.profiles[number] if number < len(self.profiles) else self.profile


def play(trace: Trace, setting: Setting, progress: Progress | None = None) -> Replay:
    """Play a trace to its end. The same trace, setting and seed give the same records.

    Raises ValueError where the engines' blocks do not fit the trace's.
    """
    engine_blocks(Arrival(0.0, 1, 1), trace.block_tokens or setting.profile.block_size, setting.profile.block_size)
    started_s = time.perf_counter()
    stage = run_virtually(_play(trace, setting, progress))
    took_s = time.perf_counter() - started_s
    records = tuple(sorted(stage.records, key=lambda record: record.index))
    length_s = max((record.arrived_s + (record.duration_s or 0.0) for record in records), default=0.0)
    changes = tuple(change for replica in stage.replicas for change in replica.role_changes)
    return Replay(setting.routing, trace.name, tuple(stage.pods), records, length_s, took_s, role_changes=changes)


class Stage:
    """Gateways, engines by pod URL, and the requests' results up to now."""

    def __init__(self, setting: Setting, block_tokens: int | None, progress: Progress | None) -> None:
        loop = asyncio.get_running_loop()
        link = setting.split.link if setting.split else None
        groups = {f"pod-{number}": name for number in range(setting.pods) if (name := setting.group_of(number))}
        steps = {name: Lockstep() for name in groups.values()}
        self.pods: Mapping[str, VirtualPod] = {
            url: VirtualPod(setting.profile_of(number), loop, link, steps[groups[url]] if groups else None)
            for number, url in enumerate(f"pod-{number}" for number in range(setting.pods))
        }
        known = groups if setting.knows_groups else {}
        self.replicas = [
            Replica(setting, number, self.pods, self._note, setting.make_room, profiles=setting.profiles, groups=known)
            for number in range(setting.replicas)
        ]
        self.records: list[Record] = []
        self._draw = Random(setting.seed)
        self._progress = progress
        self._engine_block = setting.profile.block_size
        self._block_tokens = block_tokens or self._engine_block
        self._arrivals: dict[str, tuple[int, Arrival]] = {}
        self.exchange: Exchange | None = None
        if setting.replicas > 1 and setting.sync_delay_s is not None:
            self.exchange = Exchange(delay_s=setting.sync_delay_s, beats=setting.fault is not None)
            for replica in self.replicas:
                self.exchange.join(replica.router)
            if setting.fault is not None:
                _schedule(self.exchange, setting.fault)

    async def run_request(self, index: int, arrival: Arrival) -> None:
        """Send one request to one of the gateways."""
        name = str(index)
        self._arrivals[name] = index, arrival
        size = self._block_tokens
        # Blocks behind the prompt's are its answer's: nothing that a gateway knows when it routes.
        blocks = arrival.blocks[: arrival.prompt_tokens // size]
        prompt = Prompt(blocks, range(size, size * len(blocks) + 1, size), arrival.prompt_tokens)
        request = Request(name, Api.CHAT, MODEL, prompt, stream=True, session=arrival.session)
        held = engine_blocks(arrival, size, self._engine_block)
        replica = self._draw.choice(self.replicas)
        if arrival.engine is not None:
            replica.board.recorded[name] = arrival.engine
        await replica.run_request(request, Sequence(name, arrival.prompt_tokens, arrival.output_tokens, held))

    def _note(self, outcome: Outcome) -> None:
        index, arrival = self._arrivals.pop(outcome.id)
        record = record_of(index, arrival, outcome)
        self.records.append(record)
        if self._progress:
            self._progress(record)


async def _play(trace: Trace, setting: Setting, progress: Progress | None) -> Stage:
    loop = asyncio.get_running_loop()
    stage = Stage(setting, trace.block_tokens, progress)
    lookouts = [loop.create_task(one.look()) for one in stage.replicas] if setting.replicas > 1 else []
    if setting.split is not None:
        lookouts.extend(loop.create_task(one.keep_roles()) for one in stage.replicas)
    async with asyncio.TaskGroup() as group:
        for index, arrival in enumerate(trace.arrivals):
            if (wait_s := arrival.at_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            group.create_task(stage.run_request(index, arrival))
    for lookout in lookouts:
        lookout.cancel()
    if stage.exchange:
        await stage.exchange.settle()
        stage.exchange.close()
    for replica in stage.replicas:
        if not replica.router.ledger.is_empty():
            raise AssertionError(f"all requests have ended, and yet {replica.router.ledger!r}")
    return stage


def _schedule(exchange: Exchange, fault: Fault) -> None:
    if fault.kind == "none":
        return
    loop = asyncio.get_running_loop()
    begin: dict[str, Callable[[], None]] = {
        "drop": exchange.drop,
        "stall": exchange.stall,
        "isolate": partial(exchange.isolate, 0),
    }
    loop.call_at(fault.begins_s, begin[fault.kind])
    loop.call_at(fault.ends_s, exchange.restore)


def engine_blocks(arrival: Arrival, trace_block: int, engine_block: int) -> tuple[int, ...]:
    """An arrival's prefix in an engine's blocks. Raises ValueError where neither size is a multiple of the other."""
    if trace_block % engine_block == 0:
        return arrival.finer(trace_block // engine_block)
    if engine_block % trace_block == 0:
        each = engine_block // trace_block
        return arrival.blocks[each - 1 :: each]
    raise ValueError(f"engine blocks of {engine_block} tokens do not fit the trace's blocks of {trace_block}")


def record_of(index: int, arrival: Arrival, outcome: Outcome) -> Record:
    """What the outcome says of a request, in a replay's words."""
    last = outcome.attempts[-1] if outcome.attempts else None
    answered = outcome.reason is None and outcome.status == 200
    return Record(
        index=index,
        arrived_s=arrival.at_s,
        prompt_tokens=arrival.prompt_tokens,
        output_tokens=outcome.usage.completion_tokens if outcome.usage else 0,
        pod=last.engine if last else None,
        predicted_cached_input_tokens=last.predicted_cached_input_tokens if last else None,
        cached_tokens=last.actual_cached_input_tokens if last else None,
        predicted_ttft_s=last.predicted_ttft_s if last else None,
        ttft_s=outcome.ttft_s,
        duration_s=outcome.duration_s,
        prefill_pod=last.prefill_engine if last else None,
        failure="" if answered else (outcome.reason or outcome.error or str(outcome.status)),
    )
