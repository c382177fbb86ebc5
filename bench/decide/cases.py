"""The table of decisions: by pods and prompt length, turns of conversations and new prompts apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TypeVar

from bench.decide.scene import MODEL, Scene
from routing.blocks import cut_prompt
from routing.decision.placement import Placement

T = TypeVar("T")

BURST = 8
"""Requests decided one after the other, as when many sockets become readable at once; then time goes by for all."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Medians in microseconds."""

    hash_us: float
    walk_us: float
    decide_us: float

    @property
    def total_us(self) -> float:
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
        return max(self.turn.total_us, self.new.total_us)


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
        loops.append(seconds_of(_loop)[0])
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
        hash_s, prompt = seconds_of(lambda: cut_prompt(text, 0))
        self._hash.append(hash_s)
        request = scene.request(session, prompt)
        if len(self._hash) % 4 == 0:
            # The look-up alone is timed on requests of its own: a decision after it would find everything cached.
            eligible = scene.router.fleet.eligible(MODEL)
            walk_s, _ = seconds_of(lambda: list(scene.router.index.match(prompt, eligible.mask)))
            self._walk.append(walk_s)
            return scene.decide(request)
        decide_s, placement = seconds_of(lambda: scene.decide(request))
        self._decide.append(decide_s)
        return placement

    def medians(self) -> Timed:
        return Timed(*(median(times) * 1e6 for times in (self._hash, self._walk, self._decide)))


def seconds_of(work: Callable[[], T]) -> tuple[float, T]:
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
            f"{'':5} {timed.total_us:7.1f} {timed.hash_us:6.1f} {timed.walk_us:6.1f} {timed.decide_us:7.1f}"
            f" {timed.total_us / case.loop_us:7.2f} |"
            for timed in (case.turn, case.new)
        )
        lines.append(f"{case.pods:5} {case.tokens:9,} {case.blocks:6} |{kinds}")
    return "\n".join(lines)
