"""A simulated pod without its HTTP: models, ranks, answers under way. Knows the event loop only through its ranks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from simulator.exposition import Subject, TransfersShown, render_metrics
from simulator.generation import Choice, Generation
from simulator.language import Speech, natural_tokens, state_of
from simulator.options import Options
from simulator.prompts import Chain, Prompt, seed_of
from simulator.rank import Bell, Rank, RankGroup
from simulator.script import Script, Wish, write_script
from simulator.sequence import Sequence as EngineSequence
from simulator.transfer.connector import Subject as Moved
from simulator.transfer.kv_transfer import NOTHING, KvTransfer, RuleBroken
from simulator.transfer.transfers import Transfers

CPU_LINES = b"# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total %f\n"


@dataclass(frozen=True, slots=True)
class Order:
    """What one request asks of the engine, whichever API it came by."""

    model: str
    prompts: Sequence[Prompt]
    wish: Wish
    request_id: str
    copies: int = 1
    recital: str | None = None
    """A fixed answer (JSON, a tool call) instead of free speech."""
    salt: str = ""
    priority: int = 0
    rank: int | None = None
    transfer: Mapping[str, Any] | None = None
    """`kv_transfer_params`."""
    aborts_after: int | None = None
    """The engine aborts the answers after this many tokens."""
    pools: bool = False
    """The prompt is only read: no output."""


class ResponseStore:
    """The conversations behind the last responses, for `previous_response_id`."""

    def __init__(self, max_entries: int = 1000) -> None:
        self._max_entries = max_entries
        self._kept: dict[str, list[dict[str, Any]]] = {}

    def keep(self, response_id: str, messages: list[dict[str, Any]]) -> None:
        """Remember a conversation; the oldest one is forgotten for it."""
        self._kept[response_id] = messages
        if len(self._kept) > self._max_entries:
            del self._kept[next(iter(self._kept))]

    def get(self, response_id: str) -> list[dict[str, Any]] | None:
        """The conversation that ended with this response."""
        return self._kept.get(response_id)


class Service:
    """One pod's models and engines."""

    def __init__(self, options: Options) -> None:
        self.options = options
        group = RankGroup(options.profile.time_scale) if options.enable_expert_parallel else None
        self.ranks = [Rank(options.profile, group) for _ in range(options.engines)]
        self.is_dead = False
        self.is_loaded = False
        self.is_unready = False
        """Says that it is not ready, though it answers."""
        self.rejected = 0
        """Requests refused at the door, as --max-num-queued-reqs counts them."""
        self.transfers: Transfers | None = None
        if options.wiring is not None:
            self.transfers = Transfers(options.wiring, options.profile, self.kill_engines)
            for rank in self.ranks:
                rank.errands = self.transfers
        self.responses = ResponseStore()
        self._adapters: Counter[str] = Counter()

    @property
    def is_healthy(self) -> bool:
        """What /health says."""
        return self.is_loaded and not self.is_unready and not self.is_dead

    @property
    def in_flight(self) -> int:
        """Sequences somewhere in an engine."""
        return sum(rank.in_flight for rank in self.ranks)

    def has_model(self, name: str) -> bool:
        """Served under this name, base or adapter?"""
        return name in self.options.models or name in self.options.adapters

    def seed(self, model: str) -> int:
        """Where the model's speech begins: every name of the base model says the same, an adapter speaks otherwise."""
        base_model = model if model in self.options.adapters else self.options.models[0]
        return state_of(base_model.encode())

    def set_speed(self, factor: float) -> None:
        """Run all engines at `factor` of their speed; 0 hangs them."""
        for rank in self.ranks:
            rank.set_speed(factor)

    async def idle(self) -> None:
        """Until no engine has anything to do."""
        for rank in self.ranks:
            await rank.idle.wait()

    def stop(self) -> None:
        """Play no more steps."""
        for rank in self.ranks:
            rank.stop()
        if self.transfers is not None:
            self.transfers.close()

    def kill_engines(self) -> None:
        """The engines are dead; the server is not."""
        self.is_dead = True
        for rank in self.ranks:
            rank.kill()

    def metrics(self) -> bytes:
        """The /metrics page."""
        in_use = sorted(adapter for adapter, requests in self._adapters.items() if requests)
        moved = self.transfers
        shown = None if moved is None else TransfersShown(moved.wiring.connector, moved.side_channel.counts)
        page = render_metrics(Subject(self.options, self.ranks, self.rejected, in_use, shown))
        return page + CPU_LINES % time.process_time()

    @contextmanager
    def generate(self, order: Order) -> Iterator[Generation]:
        """Run what an order asks for; what still runs when the block is left is aborted by the next step."""
        generation = self._submit(order)
        adapters = [order.model] if order.model in self.options.adapters else []
        self._adapters.update(adapters)
        try:
            yield generation
        finally:
            self._adapters.subtract(adapters)
            generation.abort()
            if self.transfers is not None:
                for choice in generation.choices:
                    self.transfers.forget(choice.sequence_id)

    def _submit(self, order: Order) -> Generation:
        rank = self.ranks[order.rank] if order.rank is not None else min(self.ranks, key=lambda rank: rank.load)
        adapter = order.model if order.model in self.options.adapters else ""
        chain_seed = seed_of(self.options.models[0], adapter, order.salt)
        bell = Bell()
        choices: list[Choice] = []
        for prompt in order.prompts:
            for copy in range(order.copies):
                script = self._script(order, prompt, copy)
                if order.aborts_after is not None:
                    script = script.aborted_after(order.aborts_after)
                sequence = self._sequence(order, prompt, script, chain_seed)
                kv_transfer = self._transfer(order, sequence)
                is_held = kv_transfer.held_as is not None
                sequence = replace(sequence, remote_tokens=kv_transfer.remote_tokens, is_held=is_held)
                progress = rank.submit(sequence, bell)
                choice = Choice(len(choices), prompt, script, sequence.sequence_id, progress)
                choice.reported_cached_tokens = kv_transfer.reported_cached_tokens
                choices.append(choice)
        return Generation(rank, choices, bell, self.options, order.copies, self.transfers)

    def _transfer(self, order: Order, sequence: EngineSequence) -> KvTransfer:
        """What it has to do with other pods' KV. Kills the engines where they would not have survived it."""
        if self.transfers is None or order.pools:
            return NOTHING
        full = sequence.prompt_tokens // self.options.profile.block_size
        subject = Moved(sequence.sequence_id, sequence.prompt_tokens, sequence.blocks[:full])
        try:
            return self.transfers.begin(order.transfer or {}, subject)
        except RuleBroken:
            self.kill_engines()
            return NOTHING

    def _script(self, order: Order, prompt: Prompt, copy: int) -> Script:
        thought = self._thought(prompt)
        if order.recital is not None:
            rest = order.recital.removeprefix(prompt.prefix_text)
            return write_script(Speech(prompt.state, rest, thought=thought), None, order.wish)
        speech = Speech(prompt.state ^ copy, accents=self.options.accents, thought=thought)
        if not prompt.is_chat:
            return write_script(speech, None, order.wish)
        natural = natural_tokens(prompt.answer_state, self.options.min_answer_tokens, self.options.max_answer_tokens)
        return write_script(speech, speech.opening + max(natural - prompt.answered, 0), order.wish)

    def _thought(self, prompt: Prompt) -> int | None:
        """How much is still to be thought; None where no thoughts are open."""
        if prompt.thought is None:
            return None
        max_reasoning = self.options.max_reasoning_tokens
        return max(natural_tokens(~prompt.answer_state, max(max_reasoning // 2, 1), max_reasoning) - prompt.thought, 0)

    def _sequence(self, order: Order, prompt: Prompt, script: Script, chain_seed: int) -> EngineSequence:
        chain = Chain(chain_seed, prompt.tokens, self.options.profile.block_size)
        return EngineSequence(
            sequence_id=f"{order.request_id}-{uuid4().hex[:8]}",
            prompt_tokens=len(prompt.tokens),
            output_tokens=0 if order.pools else script.tokens,
            blocks=tuple(chain.blocks),
            priority=order.priority,
            finish_reason=script.finish_reason,
            answer_blocks=_answer_blocks(chain, script, len(prompt.tokens), self.options.profile.block_size),
        )


def _answer_blocks(
    chain: Chain, script: Script, prompt_tokens: int, block_size: int
) -> Callable[[int], tuple[int, ...]]:
    """Ids of a sequence's first blocks, hashed on into its answer as far as they are requested."""

    def first_blocks(count: int) -> tuple[int, ...]:
        wanted = count * block_size
        if wanted > chain.tokens:
            chain.extend(script.token_ids(chain.tokens - prompt_tokens, wanted - prompt_tokens))
        return tuple(chain.blocks[:count])

    return first_blocks
