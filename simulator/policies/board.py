"""What a router without a cost model counts: requests, prompt tokens and uncached tokens in flight on each engine.

Charged when a policy has chosen, given back by the lab as tokens come out. Independent of policies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Charged:
    """One request on one engine."""

    slot: int
    prompt_tokens: float
    cold_tokens: float
    blocks: Sequence[int]
    in_prefill: bool = True


class Board:
    """Sums by engine slot; an engine nothing was ever sent to has none of anything."""

    def __init__(self) -> None:
        self.requests: defaultdict[int, int] = defaultdict(int)
        """Sent and not yet ended."""
        self.waiting: defaultdict[int, int] = defaultdict(int)
        """Of these, without a first token."""
        self.prefill_tokens: defaultdict[int, float] = defaultdict(float)
        """Uncached tokens of those without a first token."""
        self.prompt_tokens: defaultdict[int, float] = defaultdict(float)
        """Whole prompts of all that are in flight."""
        self.blocks: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """Blocks of the prompts in flight, each with how many of them have it; for the policies that read them."""
        self.keeps_blocks = False
        self.recorded: dict[str, int] = {}
        """Where requests went when they were recorded, by request id."""
        self._charged: dict[str, Charged] = {}

    def place(
        self, request_id: str, slot: int, prompt_tokens: float, warm_tokens: float, blocks: Sequence[int] = ()
    ) -> None:
        """Charge a request to an engine; a charge elsewhere is removed."""
        self.end(request_id)
        kept = blocks if self.keeps_blocks else ()
        charged = self._charged[request_id] = Charged(slot, prompt_tokens, prompt_tokens - warm_tokens, kept)
        self.blocks[slot].update(kept)
        self.requests[slot] += 1
        self.waiting[slot] += 1
        self.prompt_tokens[slot] += prompt_tokens
        self.prefill_tokens[slot] += charged.cold_tokens

    def first_token(self, request_id: str) -> None:
        """Its prompt is computed."""
        charged = self._charged.get(request_id)
        if charged and charged.in_prefill:
            charged.in_prefill = False
            self.waiting[charged.slot] -= 1
            self.prefill_tokens[charged.slot] -= charged.cold_tokens

    def end(self, request_id: str) -> None:
        """It has left its engine, however. Safe to call again."""
        self.first_token(request_id)
        charged = self._charged.pop(request_id, None)
        if charged:
            self.requests[charged.slot] -= 1
            self.prompt_tokens[charged.slot] -= charged.prompt_tokens
            held = self.blocks[charged.slot]
            held.subtract(charged.blocks)
            for block in charged.blocks:
                if not held[block]:
                    del held[block]
