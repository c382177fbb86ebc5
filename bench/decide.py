"""What one decision costs: cut and hash a prompt, look it up, choose an engine, charge it.

A fleet under load with full caches is built through the router itself, then timed decision by decision. Times are
medians, in microseconds and as multiples of a loop of plain Python timed in between, so that a busy machine does not
decide. Knows nothing of HTTP.

    python -m bench.decide [--quick] [--keep FILE]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import TypeVar

from routing.blocks import BLOCK_ENDS, Prompt, cut_prompt
from routing.fleet import EngineShape, Pod, Role, Standing
from routing.ledger import Foreign
from routing.placement import Placement, Usage
from routing.request import Api, Request
from routing.router import Router
from scorers.registry import routings

T = TypeVar("T")

MODEL = "model"
BYTES_PER_TOKEN = 4
PODS = (8, 100, 1_000)
TOKENS = (1_000, 8_000, 32_000, 128_000, 1_000_000)
SYSTEM_SHARE = 1 / 8
"""Of every prompt: a system prompt that every engine holds."""
TURN_SHARE = 1 / 32
"""Of every prompt: what a turn adds to the one before it."""
SHORTEST, LONGEST = 15 / 16, 17 / 16
"""Of the size asked for: where a conversation begins to be measured, and where another takes its place."""
RUNNING_PER_POD = 6
IN_PREFILL_PER_POD = 0.5
FILLER_BYTES = 8 << 10
"""What runs beside the conversations."""
HELD_BLOCKS_PER_POD = 2_000
"""What stands in each engine's cache, which is full: the conversations, and prompts of others."""
REPEATS = 3
"""Scenes per case: the one least disturbed by neighbours counts."""
BURST = 8
"""Requests decided one after the other, as when many sockets become readable at once; then time goes by for all."""
LONG = 128_000
"""Tokens from which on fewer decisions are timed."""
MOST_TEXT_BYTES = 64 << 20
"""Bounds the conversations kept for one case."""

METHOD = """\
Every engine holds the system prompt (an eighth of each prompt), its cache is full, so that each new block displaces an
old one; 6 sequences run on it, every other engine has one in prefill, and a scrape says what others have put there.
turn: the next turn of a conversation, 31 parts of 32 warm where its last turn was; new: only the system prompt is warm.
us: hash + decide. hash: cut and hash the prompt. walk: the look-up alone, part of decide. decide: look up, score,
choose, charge. x loop: in multiples of 1,000 rounds of `total += i * i`. Medians; turns and new ones come mixed, in
bursts of 8; of three scenes the least disturbed.\
"""


class Conversation:
    """A text that each turn uncovers a little more of."""

    def __init__(self, session: str, text: bytes, first: int, step: int) -> None:
        self.session = session
        self._text = text
        self._end = first
        self._step = step

    @property
    def is_over(self) -> bool:
        return self._end + self._step > len(self._text)

    def said(self) -> bytes:
        return self._text[: self._end]

    def next_turn(self) -> bytes:
        self._end += self._step
        return self.said()


@dataclass(frozen=True, slots=True)
class Timed:
    """Medians in microseconds."""

    hash_us: float
    walk_us: float
    decide_us: float

    @property
    def whole_us(self) -> float:
        return self.hash_us + self.decide_us


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    pods: int
    tokens: int
    blocks: int
    turn: Timed
    new: Timed
    loop_us: float

    @property
    def worst_us(self) -> float:
        return max(self.turn.whole_us, self.new.whole_us)


class Scene:
    """A fleet of `pods` under load, and conversations of `tokens` warm on it."""

    def __init__(self, pods: int, tokens: int, seed: int = 1) -> None:
        self._random = Random(seed)
        self._size = tokens * BYTES_PER_TOKEN
        self._blocks = bisect_right(BLOCK_ENDS, self._size)
        self._prompts_held = max(3, HELD_BLOCKS_PER_POD // self._blocks)
        self._now_s = 1_000.0
        self._ids = count()
        self._running: deque[Placement] = deque()
        self._in_prefill: deque[Placement] = deque()
        self._most_in_prefill = int(pods * IN_PREFILL_PER_POD)
        self._most_running = pods * RUNNING_PER_POD - self._most_in_prefill
        self.router = self._fleet(pods, tokens)
        self._system = self._random.randbytes(int(self._size * SYSTEM_SHARE))
        self._fill_caches(pods)
        self._conversations = deque[Conversation]()
        for _ in range(max(4, min(2 * pods, MOST_TEXT_BYTES // self._size))):
            self._begin_conversation()
        while len(self._running) < self._most_running:
            self.settle_in(self.decide(self.request(None, cut_prompt(self._random.randbytes(FILLER_BYTES), 0))))

    def conversation(self) -> Conversation:
        """The one whose turn it is."""
        self._conversations.rotate(-1)
        if self._conversations[0].is_over:
            self._conversations.popleft()
            self._begin_conversation()
        return self._conversations[0]

    def new_text(self, share: float = 1.0) -> bytes:
        """A prompt nobody has seen, behind the system prompt."""
        return self._system + self._random.randbytes(int(self._size * share) - len(self._system))

    def request(self, session: str | None, prompt: Prompt) -> Request:
        return Request(str(next(self._ids)), Api.CHAT, MODEL, prompt, stream=True, session=session)

    def decide(self, request: Request) -> Placement:
        """What is measured."""
        return self.router.place(request, avoid=frozenset(), now_s=self._now_s, draw=0.5)

    def settle_in(self, placement: Placement) -> None:
        """Let time go by: the new request begins its prefill, an older one its answer, an old one ends."""
        self._now_s += 0.001
        self._in_prefill.append(placement)
        if len(self._in_prefill) > self._most_in_prefill:
            started = self._in_prefill.popleft()
            started.first_token(self._now_s)
            self._running.append(started)
        if len(self._running) > self._most_running:
            ended = self._running.popleft()
            tokens = ended.request.prompt.size // BYTES_PER_TOKEN
            ended.settle(Usage(tokens, 200, int(ended.predicted.warm_tokens)), self._now_s)
            ended.release(self._now_s)

    def _begin_conversation(self) -> None:
        step = int(self._size * TURN_SHARE)
        fresh = Conversation(f"session-{next(self._ids)}", self.new_text(LONGEST), int(self._size * SHORTEST), step)
        self.settle_in(self.decide(self.request(fresh.session, cut_prompt(fresh.said(), 0))))
        self._conversations.appendleft(fresh)

    def _fill_caches(self, pods: int) -> None:
        """With hashes only: what others say need not be said."""
        index, system = self.router.index, cut_prompt(self._system, 0)
        for slot in range(pods):
            for _ in range(self._prompts_held):
                hashes = tuple(self._random.getrandbits(64) for _ in range(self._blocks))
                index.computed(index.put(slot, Prompt(hashes, BLOCK_ENDS, self._size)))
            index.computed(index.put(slot, system))

    def _fleet(self, pods: int, tokens: int) -> Router:
        router = Router(routings()["warm"])
        for number in range(pods):
            url = f"http://10.0.{number // 256}.{number % 256}:8000"
            router.put_pod(Pod(url, Standing.READY, frozenset({MODEL}), ready_since_s=0.0))
            router.reshape_pod(url, [EngineShape(None, Role.EITHER, self._prompts_held * tokens, 16)])
            router.observe_load(number, Foreign(2.0, 0.0, 5_000.0, self._now_s))
        return router


def measure(pods: int, tokens: int, rounds: int) -> Case:
    """One case of the table. Requests come in bursts, turns and new ones mixed."""
    scene = Scene(pods, tokens)
    turn, new = _Samples(), _Samples()
    loops: list[float] = []
    for _ in range(rounds):
        burst: list[tuple[_Samples, str | None, bytes]] = []
        for _ in range(BURST // 2):
            conversation = scene.conversation()
            burst.append((turn, conversation.session, conversation.next_turn()))
            burst.append((new, None, scene.new_text()))
        placements = [samples.take(scene, session, text) for samples, session, text in burst]
        loops.append(_seconds(_loop)[0])
        for placement in placements:
            scene.settle_in(placement)
    blocks = len(placements[-1].request.prompt.blocks)
    return Case(pods, tokens, blocks, turn.medians(), new.medians(), median(loops) * 1e6)


class _Samples:
    """Times of one kind of request."""

    def __init__(self) -> None:
        self._hash: list[float] = []
        self._walk: list[float] = []
        self._decide: list[float] = []

    def take(self, scene: Scene, session: str | None, text: bytes) -> Placement:
        """Time one request."""
        hash_s, prompt = _seconds(lambda: cut_prompt(text, 0))
        self._hash.append(hash_s)
        request = scene.request(session, prompt)
        if len(self._hash) % 4 == 0:
            # The look-up alone is timed on requests of its own: a decision after it would find everything at hand.
            roster = scene.router.fleet.roster(MODEL)
            walk_s, _ = _seconds(lambda: list(scene.router.index.walk(prompt, roster.mask)))
            self._walk.append(walk_s)
            return scene.decide(request)
        decide_s, placement = _seconds(lambda: scene.decide(request))
        self._decide.append(decide_s)
        return placement

    def medians(self) -> Timed:
        return Timed(*(median(times) * 1e6 for times in (self._hash, self._walk, self._decide)))


def _seconds(work: Callable[[], T]) -> tuple[float, T]:
    begin = perf_counter()
    made = work()
    return perf_counter() - begin, made


def _loop() -> int:
    total = 0
    for i in range(1_000):
        total += i * i
    return total


def table(cases: Sequence[Case]) -> str:
    """The cases as lines of text."""
    head = f"{'pods':>5} {'tokens':>9} {'blocks':>6} |" + "".join(
        f"{name:>5} {'us':>7} {'hash':>6} {'walk':>6} {'decide':>7} {'x loop':>7} |" for name in ("turn", "new")
    )
    lines = [head]
    for case in cases:
        kinds = "".join(
            f"{'':5} {timed.whole_us:7.1f} {timed.hash_us:6.1f} {timed.walk_us:6.1f} {timed.decide_us:7.1f}"
            f" {timed.whole_us / case.loop_us:7.2f} |"
            for timed in (case.turn, case.new)
        )
        lines.append(f"{case.pods:5} {case.tokens:9,} {case.blocks:6} |{kinds}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that is wanted, and what was found."""

    wanted: str
    most: float
    found: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.found <= self.most

    def __str__(self) -> str:
        verdict = "ok   " if self.is_met else "SHORT"
        return f"{verdict} {self.wanted}: wanted at most {self.most:g} {self.unit}, found {self.found:.2f}"


def targets(cases: Sequence[Case]) -> list[Target]:
    """What issue and design ask of a decision. The worse of the two kinds counts."""
    at = {(case.pods, case.tokens): case for case in cases}
    few, many = PODS[0], PODS[-1]
    short, long = TOKENS[0], TOKENS[-1]
    grown = [at[pods, long].worst_us - at[pods, short].worst_us for pods in (few, many)]
    return [
        Target("100 pods, 8k tokens", 80, at[100, 8_000].worst_us, "us"),
        Target("1,000 pods, 1M tokens", 5_000, at[1_000, 1_000_000].worst_us, "us"),
        Target(
            f"what {long:,} tokens cost more than {short:,}, at {many:,} pods against {few}",
            5,
            grown[1] / grown[0],
            f"times (blocks x pods would be {many // few})",
        ),
    ]


def machine() -> str:
    """In words that name no machine."""
    return f"{os.cpu_count()} shared cores, {platform.python_implementation()} {platform.python_version()}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.decide", description="What a decision costs.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the decisions")
    parser.add_argument("--keep", type=Path, help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    rounds = 20 if options.quick else 60
    cases = []
    for pods in PODS:
        for tokens in TOKENS:
            print(f"{pods} pods, {tokens:,} tokens ...", file=sys.stderr)
            runs = [measure(pods, tokens, min(rounds, 20) if tokens >= LONG else rounds) for _ in range(REPEATS)]
            cases.append(min(runs, key=lambda run: run.worst_us))
    found = targets(cases)
    loop_us = median(case.loop_us for case in cases)
    report = "\n\n".join(
        [
            f"bench-decide, {datetime.now(UTC):%Y-%m-%d}, {machine()}; one loop took {loop_us:.1f} us",
            METHOD,
            table(cases),
            "\n".join(map(str, found)),
        ]
    )
    print(report)
    if options.keep:
        options.keep.write_text(report + "\n")
    return 0 if all(target.is_met for target in found) else 1


if __name__ == "__main__":
    sys.exit(main())
