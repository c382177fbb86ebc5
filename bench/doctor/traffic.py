"""Requests of the four pools: drawn from a seed, with prompts as chains of block ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from bench.doctor.plans import BLOCK

GROUP_TOKENS = 1_024
DOCUMENT_TOKENS = 6_016
DOCUMENTS = 24
GROUPS = 8


@dataclass(slots=True)
class Load:
    """How much of what arrives; a scenario may change it at any time. Rates are requests/s."""

    rates: dict[str, float] = field(default_factory=lambda: {"chat": 5.0, "moe": 3.0, "split": 3.0, "rag": 2.8})
    prompt_factor: float = 1.0
    answer_factors: dict[str, float] = field(default_factory=dict)
    """By pool, where answers are longer than usual."""
    constrained: float = 0.05
    """Share of chat requests with a schema."""
    is_salted: bool = False
    """Each chat request is of a tenant that shares its KV cache with no other."""
    has_new_documents: bool = False
    """Nothing repeats in `rag`."""
    long_prompts_per_s: float = 0.0
    """Long, new prompts that are sent to the first chat pod."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One request."""

    pool: str
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    is_constrained: bool = False
    salt: str = ""
    pod: str = ""
    """Pinned to this pod; empty: not."""


class Traffic:
    """Draws the next request of a pool."""

    def __init__(self, seed: int) -> None:
        self.load = Load()
        self._draws = Random(seed)
        self._names = 1_000
        self._sessions: list[tuple[int, int, tuple[int, ...]]] = []

    def wait_s(self, rate: float) -> float:
        """Draw the time until the next arrival."""
        return self._draws.expovariate(rate)

    def draw(self, pool: str) -> Drawn:
        """Draw a request of a pool."""
        return {"chat": self._chat, "moe": self._moe, "split": self._split, "rag": self._rag}[pool]()

    def long_prompt(self, pod: str) -> Drawn:
        """Draw a long, new prompt that is sent to one pod."""
        tokens = self._draws.randint(5_000, 9_000)
        return Drawn("chat", tokens, self._draws.randint(10, 40), self._new_blocks(tokens), pod=pod)

    def _answer(self, pool: str, mean: float) -> int:
        drawn = self._draws.lognormvariate(0.0, 0.5) * mean * self.load.answer_factors.get(pool, 1.0)
        return min(max(int(drawn), 4), 2_000)

    def _name(self) -> int:
        self._names += 1
        return self._names

    def _new_blocks(self, tokens: int) -> tuple[int, ...]:
        name = self._name() << 20
        return tuple(name + index for index in range(tokens // BLOCK))

    def _chat(self) -> Drawn:
        """A turn of a session, new or begun; its prompt begins with what its session has sent before."""
        draws, load = self._draws, self.load
        turn = int(draws.randint(80, 400) * load.prompt_factor)
        if self._sessions and draws.random() < 0.7:
            place = draws.randrange(len(self._sessions))
            tokens, turns, blocks = self._sessions.pop(place)
        else:
            group = draws.randrange(GROUPS)
            tokens, turns = GROUP_TOKENS, draws.randint(3, 7)
            blocks = tuple((group + 1 << 20) + index for index in range(GROUP_TOKENS // BLOCK))
        tokens += turn
        missing = tokens // BLOCK - len(blocks)
        blocks += self._new_blocks(missing * BLOCK)
        if turns > 1:
            self._sessions.append((tokens, turns - 1, blocks))
            del self._sessions[:-200]
        salt = ""
        if load.is_salted:
            name = self._name()
            salt, blocks = f"s{name}", tuple((name << 44) + block for block in blocks)
        return Drawn("chat", tokens, self._answer("chat", 180), blocks, draws.random() < load.constrained, salt)

    def _moe(self) -> Drawn:
        is_long = self._draws.random() < 0.3
        drawn = self._draws.randint(3_000, 6_000) if is_long else self._draws.randint(300, 900)
        tokens = int(drawn * self.load.prompt_factor)
        return Drawn("moe", tokens, self._answer("moe", 200), self._new_blocks(tokens))

    def _split(self) -> Drawn:
        tokens = int(self._draws.randint(1_500, 5_500) * self.load.prompt_factor)
        return Drawn("split", tokens, self._answer("split", 100), self._new_blocks(tokens))

    def _rag(self) -> Drawn:
        draws = self._draws
        if self.load.has_new_documents:
            blocks = self._new_blocks(DOCUMENT_TOKENS)
        else:
            document = draws.randint(1, DOCUMENTS)
            blocks = tuple((document + 100 << 20) + index for index in range(DOCUMENT_TOKENS // BLOCK))
        extra = int(draws.randint(60, 260) * self.load.prompt_factor)
        blocks += self._new_blocks(extra)
        return Drawn("rag", DOCUMENT_TOKENS + extra, self._answer("rag", 40), blocks)
