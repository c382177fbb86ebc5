"""Generates conversations: arrivals, prompt lengths, and what prompts share with earlier ones.

The shapes follow what is published of recorded traces (lengths, turns, pauses, shared beginnings, reuse) and hold no
row of any. Everything is drawn from one seed; independent of routers and engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from math import ceil, exp, log
from random import Random

from simulator.traces import Arrival, Runs, Trace, make_trace

BLOCK_TOKENS = 16
"""As fine as vLLM shares by default."""

HISTORY_IDS = 1 << 20
"""Block ids set aside for one history: more than any prompt has."""

CONVERSATION_IDS = HISTORY_IDS << 12
"""For all histories of one conversation."""

P90 = 1.2816
"""Standard deviations from the median of a normal distribution to its 90th percentile."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Given as measurements are: by median and 90th percentile."""

    p50: float
    p90: float

    def draw(self, random: Random) -> float:
        """One number, above zero."""
        return self.p50 * exp(random.gauss(0.0, 1.0) * log(self.p90 / self.p50) / P90)

    @property
    def mean(self) -> float:
        """What its numbers come to on average."""
        return self.p50 * exp((log(self.p90 / self.p50) / P90) ** 2 / 2)


@dataclass(frozen=True, slots=True)
class Shape:
    """What conversations are like. Lengths in tokens.

    A conversation opens with one of `assistants` system prompts (the k-th is chosen in proportion to 1 / k) and a first
    prompt; each further turn sends all that went before, the answer, a message, and now and then a document.
    """

    requests_per_s: float
    turns: LogNormal
    pause_s: LogNormal
    """From one request of a conversation to its next, the answer's time included."""
    system_tokens: LogNormal
    first_tokens: LogNormal
    message_tokens: LogNormal
    document_tokens: LogNormal
    document_share: float
    """Of the turns after the first."""
    answer_tokens: LogNormal
    rewrite_share: float = 0.0
    """Of the turns after the first: the history is rewritten to a fresh one (compaction, a sub-task)."""
    assistants: int = 1
    max_prompt_tokens: int = 128_000
    """A conversation that has grown to this ends."""
    max_answer_tokens: int = 8_192


CHAT = Shape(
    requests_per_s=3.4,
    turns=LogNormal(0.75, 2.4),
    pause_s=LogNormal(123, 483),
    system_tokens=LogNormal(520, 521),
    first_tokens=LogNormal(4_800, 22_000),
    message_tokens=LogNormal(200, 600),
    document_tokens=LogNormal(7_000, 18_000),
    document_share=0.3,
    answer_tokens=LogNormal(350, 597),
)
"""A public chat service, after Mooncake's conversation trace: prompts 6,909 / 27,367 / 85,400 tokens (p50, p90, p99),
answers 350 / 597 / 1,119, one system prompt of 4 % of all tokens, 0.37 of all prompt tokens seen before; most
conversations end with their first answer."""

AGENT = Shape(
    requests_per_s=0.9,
    turns=LogNormal(46, 156),
    pause_s=LogNormal(12, 60),
    system_tokens=LogNormal(14_000, 20_000),
    first_tokens=LogNormal(25_000, 110_000),
    message_tokens=LogNormal(600, 3_000),
    document_tokens=LogNormal(5_000, 20_000),
    document_share=0.1,
    answer_tokens=LogNormal(216, 845),
    rewrite_share=0.025,
    assistants=2,
    max_prompt_tokens=600_000,
)
"""Coding agents, after public recordings of Claude Code: prompts of 100k / 209k / 530k tokens, answers 216 / 845 /
3,704, turns 46 / 156 / 339, 0.96 of all prompt tokens seen before."""

TEAMS = Shape(
    requests_per_s=2.5,
    turns=LogNormal(4, 10),
    pause_s=LogNormal(30, 90),
    system_tokens=LogNormal(1_500, 4_000),
    first_tokens=LogNormal(3_000, 12_000),
    message_tokens=LogNormal(120, 500),
    document_tokens=LogNormal(5_000, 15_000),
    document_share=0.3,
    answer_tokens=LogNormal(180, 350),
    assistants=12,
    max_prompt_tokens=64_000,
)
"""A company's assistants, between the two: a dozen system prompts, conversations of some turns, documents pasted in.
Pauses are short and answers brief, so that a demo of minutes sees conversations come back."""

SHAPES: Mapping[str, Shape] = {"chat": CHAT, "agent": AGENT, "teams": TEAMS}

SETTLING_S = 3600.0
"""Conversations begin this long before the trace does, so that it starts in the middle of things."""

SAMPLED = 400
"""Conversations from which the requests of one are counted, to begin as many as make the wanted rate."""


def generate(shape: Shape, requests: int, *, seed: int = 0, name: str = "generated") -> Trace:
    """Return a trace of `requests` requests. The same shape, seed and number give the same trace."""
    return make_trace(name, islice(_flow(shape, Random(seed)), requests), BLOCK_TOKENS)


def _flow(shape: Shape, random: Random) -> Iterator[Arrival]:
    """Requests of all conversations in order of time, without end, from 0 s on."""
    systems = [ceil(shape.system_tokens.draw(random)) for _ in range(shape.assistants)]
    gap_s = _requests_each(shape, systems, Random(random.random())) / shape.requests_per_s
    begin_s, number = -SETTLING_S, shape.assistants
    active: list[tuple[float, int, Arrival, Iterator[Arrival]]] = []
    while True:
        begin_s += random.expovariate(1 / gap_s)
        while active and active[0][0] < begin_s:
            _, order, arrival, rest = heappop(active)
            if arrival.at_s >= 0.0:
                yield arrival
            if (following := next(rest, None)) is not None:
                heappush(active, (following.at_s, order, following, rest))
        conversation = _converse(shape, systems, number, begin_s, Random(random.random()))
        first = next(conversation)
        heappush(active, (begin_s, number, first, conversation))
        number += 1


def _converse(shape: Shape, systems: Sequence[int], number: int, begin_s: float, random: Random) -> Iterator[Arrival]:
    """The turns of one conversation. Nothing is ever taken back, so its blocks are numbered as they fill."""
    assistant = random.choices(range(len(systems)), [1 / rank for rank in range(1, len(systems) + 1)])[0]
    system, history = systems[assistant], 0
    at_s, prompt = begin_s, system + ceil(shape.first_tokens.draw(random))
    for _ in range(ceil(shape.turns.draw(random))):
        prompt = min(prompt, shape.max_prompt_tokens)
        answer = min(ceil(shape.answer_tokens.draw(random)), shape.max_answer_tokens)
        own = number * CONVERSATION_IDS + history * HISTORY_IDS
        yield Arrival(at_s, prompt, answer, f"{number}", _runs(assistant * CONVERSATION_IDS, system, own, prompt))
        if prompt == shape.max_prompt_tokens:
            return
        at_s += shape.pause_s.draw(random)
        prompt += answer + ceil(shape.message_tokens.draw(random))
        if random.random() < shape.document_share:
            prompt += ceil(shape.document_tokens.draw(random))
        if random.random() < shape.rewrite_share:
            history += 1
            prompt = system + ceil(shape.first_tokens.draw(random))


def _runs(shared_id: int, system_tokens: int, own_id: int, prompt_tokens: int) -> Runs:
    """The full blocks of the system prompt are its assistant's, all behind them the conversation's own."""
    full = prompt_tokens // BLOCK_TOKENS
    shared = min(system_tokens // BLOCK_TOKENS, full)
    runs = ((shared_id, shared), (own_id + shared, full - shared))
    return tuple(run for run in runs if run[1])


def _requests_each(shape: Shape, systems: Sequence[int], random: Random) -> float:
    """How many requests a conversation has on average."""
    conversations = (_converse(shape, systems, 0, 0.0, random) for _ in range(SAMPLED))
    return sum(1 for conversation in conversations for _ in conversation) / SAMPLED
