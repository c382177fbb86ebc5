"""Answers under way, as their consumer sees them: what is new, what it cost, and how to give them up.

Independent of HTTP and of the prompt's origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.options import Options
from simulator.prompts import Prompt
from simulator.rank import Bell, Progress, Rank
from simulator.script import Script
from simulator.transfer.transfers import Transfers


@dataclass(frozen=True, slots=True)
class Portion:
    """What came since the last look: the tokens [start, end) of a choice."""

    start: int
    end: int
    text: str
    is_last: bool


class Choice:
    """One answer of a generation."""

    __slots__ = ("end_taken", "index", "progress", "prompt", "reported_cached_tokens", "script", "sequence_id", "taken")

    def __init__(self, index: int, prompt: Prompt, script: Script, sequence_id: str, progress: Progress) -> None:
        self.index = index
        self.prompt = prompt
        self.script = script
        self.sequence_id = sequence_id
        self.progress = progress
        self.taken = 0
        self.end_taken = False
        self.reported_cached_tokens: int | None = None
        """Cached tokens reported by a prefilling pod: engines repeat that instead of their own count."""

    def take(self, max_tokens: int) -> Portion | None:
        """What is new, `max_tokens` tokens at most, if anything is."""
        start, end = self.taken, min(self.progress.produced, self.taken + max_tokens)
        if self.end_taken or end == start:
            return None
        self.taken = end
        self.end_taken = end == self.script.tokens
        return Portion(start, end, self.script.text(start, end), self.end_taken)

    @property
    def text(self) -> str:
        """All output up to now."""
        return self.script.text(0, self.progress.produced)

    @property
    def cached_tokens(self) -> int:
        """What the prefix cache gave; 0 until it is known."""
        if self.reported_cached_tokens is not None:
            return self.reported_cached_tokens
        milestone = self.progress.end or self.progress.first
        return milestone.cached_tokens if milestone else 0


class Generation:
    """All answers to one request."""

    def __init__(
        self,
        rank: Rank,
        choices: list[Choice],
        bell: Bell,
        options: Options,
        copies: int,
        transfers: Transfers | None = None,
    ) -> None:
        self.choices = choices
        self.copies = copies
        self._rank = rank
        self._bell = bell
        self._block_size = options.profile.block_size
        self._max_tokens = options.tokens_per_event
        self._transfers = transfers

    def abort(self) -> None:
        """Take whatever still runs out of the engine."""
        for choice in self.choices:
            if not choice.progress.is_over:
                self._rank.abort(choice.sequence_id)

    @property
    def is_over(self) -> bool:
        """Nothing more will come."""
        return all(choice.progress.is_over for choice in self.choices)

    @property
    def has_failed(self) -> bool:
        """The engine died under it."""
        return any(choice.progress.has_failed for choice in self.choices)

    @property
    def is_taken(self) -> bool:
        """All has been taken."""
        return all(choice.end_taken for choice in self.choices)

    async def more(self) -> list[tuple[Choice, Portion]]:
        """Wait for what is new; nothing when the engine has died."""
        await self._bell.wait()
        portions: list[tuple[Choice, Portion]] = []
        for choice in self.choices:
            while portion := choice.take(self._max_tokens):
                portions.append((choice, portion))
        return portions

    async def completed(self) -> None:
        """Wait until the output is complete."""
        while not self.is_over:
            await self._bell.wait()

    @property
    def transfer_params(self) -> dict[str, Any] | None:
        """What a complete response reports of its KV, for the decoding pod."""
        if self._transfers is None:
            return None
        choice = self.choices[0]
        return self._transfers.returned(choice.sequence_id, choice.cached_tokens)

    @property
    def prompt_tokens(self) -> int:
        """Each prompt counted once, however many answers it gets."""
        return sum(len(choice.prompt.tokens) for choice in self.choices[:: self.copies])

    @property
    def completion_tokens(self) -> int:
        """Tokens produced up to now, over all answers."""
        return sum(choice.progress.produced for choice in self.choices)

    @property
    def thought_tokens(self) -> int:
        """How many of them were thoughts."""
        return sum(min(choice.progress.produced, choice.script.thought_tokens) for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """What the prefix cache gave to the first answer of each prompt."""
        return sum(choice.cached_tokens for choice in self.choices[:: self.copies])

    @property
    def created_cache_tokens(self) -> int:
        """What the prompts added to the prefix cache, in whole blocks."""
        size = self._block_size
        full = sum(len(choice.prompt.tokens) // size * size for choice in self.choices[:: self.copies])
        return max(full - self.cached_tokens, 0)
