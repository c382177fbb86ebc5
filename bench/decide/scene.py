"""A fleet under load with full caches, built through the router itself, and conversations that go on upon it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import count
from random import Random

from routing.blocks import BLOCK_ENDS, Prompt, cut_prompt
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.facts import Role
from routing.ledger import ExternalLoad
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request, Usage
from scorers.registry import routings

MODEL = "model"
BYTES_PER_TOKEN = 4
SYSTEM_SHARE = 1 / 8
"""Of every prompt: a system prompt that every engine holds."""
TURN_SHARE = 1 / 32
"""Of every prompt: what a turn adds to the one before it."""
SHORTEST, MAX_SHARE = 15 / 16, 17 / 16
"""Of the size asked for: where a conversation begins to be measured, and where another takes its place."""
RUNNING_PER_POD = 6
IN_PREFILL_PER_POD = 0.5
FILLER_BYTES = 8 << 10
"""What runs beside the conversations."""
HELD_BLOCKS_PER_POD = 2_000
"""What is in each engine's cache, which is full: the conversations, and prompts of others."""
MAX_TEXT_BYTES = 64 << 20
"""Bounds the conversations kept for one case."""
ANSWER_TOKENS = 200


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

    def history(self) -> bytes:
        return self._text[: self._end]

    def next_turn(self) -> bytes:
        self._end += self._step
        return self.history()


class Scene:
    """A fleet of `pods` under load, and conversations of `tokens` cached on it."""

    def __init__(self, pods: int, tokens: int, *, interval_s: float = 0.001, seed: int = 1) -> None:
        """`interval_s`: how much time goes by from one request to the next."""
        self._random = Random(seed)
        self._interval_s = interval_s
        self._size = tokens * BYTES_PER_TOKEN
        self._blocks = bisect_right(BLOCK_ENDS, self._size)
        self._prompts_held = max(3, HELD_BLOCKS_PER_POD // self._blocks)
        self._now_s = 1_000.0
        self._ids = count()
        self._running: deque[Placement] = deque()
        self._in_prefill: deque[Placement] = deque()
        self._max_in_prefill = int(pods * IN_PREFILL_PER_POD)
        self._max_running = pods * RUNNING_PER_POD - self._max_in_prefill
        self.router = self._fleet(pods, tokens)
        self._system = self._random.randbytes(int(self._size * SYSTEM_SHARE))
        self._fill_caches(pods)
        self._conversations = deque[Conversation]()
        for _ in range(max(4, min(2 * pods, MAX_TEXT_BYTES // self._size))):
            self._begin_conversation()
        while len(self._running) < self._max_running:
            self.settle_in(self.decide(self.request(None, cut_prompt(self._random.randbytes(FILLER_BYTES), 0))))

    @property
    def now_s(self) -> float:
        """Seconds on the clock of the scene."""
        return self._now_s

    @property
    def max_open(self) -> int:
        """Requests that run at a time."""
        return self._max_running + self._max_in_prefill

    def conversation(self) -> Conversation:
        """The one whose turn it is."""
        self._conversations.rotate(-1)
        if self._conversations[0].is_over:
            self._conversations.popleft()
            self._begin_conversation()
        return self._conversations[0]

    def new_text(self, share: float = 1.0) -> bytes:
        """Return a new prompt behind the system prompt."""
        return self._system + self._random.randbytes(int(self._size * share) - len(self._system))

    def request(self, session: str | None, prompt: Prompt) -> Request:
        return Request(str(next(self._ids)), Api.CHAT, MODEL, prompt, stream=True, session=session)

    def decide(self, request: Request) -> Placement:
        """What is measured."""
        return self.router.place(request, avoid=frozenset(), now_s=self._now_s, draw=0.5)

    def settle_in(self, placement: Placement) -> None:
        """Let time go by: the new request begins its prefill, an older one its answer, an old one ends."""
        self._now_s += self._interval_s
        self._in_prefill.append(placement)
        if len(self._in_prefill) > self._max_in_prefill:
            started = self._in_prefill.popleft()
            started.first_token(self._now_s)
            self._running.append(started)
        if len(self._running) > self._max_running:
            self._end(self._running.popleft())

    def _end(self, placement: Placement) -> None:
        placement.settle(usage_of(placement), self._now_s)
        placement.release(self._now_s)

    def _begin_conversation(self) -> None:
        step = int(self._size * TURN_SHARE)
        fresh = Conversation(f"session-{next(self._ids)}", self.new_text(MAX_SHARE), int(self._size * SHORTEST), step)
        self.settle_in(self.decide(self.request(fresh.session, cut_prompt(fresh.history(), 0))))
        self._conversations.appendleft(fresh)

    def _fill_caches(self, pods: int) -> None:
        """With hashes only: the other prompts' text is not needed."""
        index, system = self.router.index, cut_prompt(self._system, 0)
        for slot in range(pods):
            for _ in range(self._prompts_held):
                hashes = tuple(self._random.getrandbits(64) for _ in range(self._blocks))
                index.prefill_done(index.insert(slot, Prompt(hashes, BLOCK_ENDS, self._size)))
            index.prefill_done(index.insert(slot, system))

    def _fleet(self, pods: int, tokens: int) -> Router:
        router = Router(routings()["warm"])
        for number in range(pods):
            url = f"http://10.0.{number // 256}.{number % 256}:8000"
            router.put_pod(Pod(url, PodState.READY, frozenset({MODEL}), ready_since_s=0.0))
            router.reshape_pod(url, [EngineShape(None, Role.EITHER, self._prompts_held * tokens, 16)])
            router.observe_load(number, ExternalLoad(2.0, 0.0, 5_000.0, self._now_s))
        return router


def usage_of(placement: Placement) -> Usage:
    """What an engine says of an answer."""
    tokens = placement.request.prompt.size // BYTES_PER_TOKEN
    return Usage(tokens, ANSWER_TOKENS, int(placement.predicted.cached_tokens))
