"""Estimates tokens of prompt bytes without a tokenizer: learned per model from the usage that engines report.

Sizes are bytes of canonical prompt (or whatever unit `Prompt.size` counts in).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from math import inf

from msgspec import Struct

from routing.blocks import PackedPrompt, Prompt
from routing.cost import RunningRatio

DEFAULT_BYTES_PER_TOKEN = 4.0
"""English and code with today's vocabularies of 100k and more; corrected by the first answers."""

TEMPLATE_TOKENS = 8.0
"""What a chat template adds around a prompt, about."""

RATIO_MEMORY = 1000.0
"""In usual prompts. The ratio belongs to the model and to what its users write: it drifts slowly."""

TYPICAL_PROMPT_TOKENS = 500.0
"""The prompt that counts as one observation: a shorter one says more of the template than of the text."""

PRIOR_PROMPTS = 1.0
"""In usual prompts: a tenant's text is taken to be like that of all as if so many of its own had shown it."""

MAX_TENANTS = 4_096
"""Tenants whose own ratio is kept, for each model."""

MAX_LEAVES = 1 << 16


class CountedPrefix(Struct, frozen=True, gc=False):
    """The end of a prompt whose length in tokens an engine has reported."""

    tokens: int
    size: int
    covered: int
    """How much of `size` lies in full blocks."""


class TokenCounter:
    """Expected tokens of prompts of one model, and exact ones where the same prefix was counted by an engine before."""

    def __init__(self, size_per_token: float) -> None:
        self._default_size_per_token = size_per_token
        self.size_per_token = size_per_token
        self._ratio = RunningRatio(RATIO_MEMORY, total_weight=1.0)
        self._of_tenants: OrderedDict[str, RunningRatio] = OrderedDict()
        """Of each tenant's own prompts, the one that was first seen longest ago first."""
        self._leaves: OrderedDict[int, CountedPrefix] = OrderedDict()

    def learn(self, prompt: Prompt | PackedPrompt, tokens: int, tenant: str | None = None) -> None:
        """An engine counted `tokens` for this whole prompt of a tenant, None without tenants."""
        if prompt.size:
            default_tokens = prompt.size / self._default_size_per_token
            ratio = max(1.0, tokens - TEMPLATE_TOKENS) / default_tokens
            weight = default_tokens / TYPICAL_PROMPT_TOKENS
            if tenant is not None:
                own = self._of_tenants.get(tenant)
                if own is None:
                    if len(self._of_tenants) >= MAX_TENANTS:
                        self._of_tenants.popitem(last=False)
                    own = self._of_tenants[tenant] = RunningRatio(RATIO_MEMORY, self._ratio.value)
                own.observe(ratio, weight)
            self._ratio.observe(ratio, weight)
            self.size_per_token = self._default_size_per_token / self._ratio.value
        self.remember(prompt, tokens)

    def size_per_token_of(self, tenant: str | None) -> float:
        """Return the bytes per token of a tenant's prompts; of all prompts as far as few of its own were counted."""
        own = self._of_tenants.get(tenant) if tenant is not None else None
        if own is None:
            return self.size_per_token
        return self._default_size_per_token / own.shrunk_towards(self._ratio, PRIOR_PROMPTS)

    def remember(self, prompt: Prompt | PackedPrompt, tokens: int) -> None:
        """An engine holds exactly `tokens` of this prompt; the next turn will be counted from there."""
        last_block = prompt.last_block
        if last_block is None:
            return
        leaves = self._leaves
        leaves[last_block] = CountedPrefix(tokens, prompt.size, prompt.covered)
        leaves.move_to_end(last_block)
        if len(leaves) > MAX_LEAVES:
            leaves.popitem(last=False)

    def known_leaf(self, prompt: Prompt, within: float = inf) -> CountedPrefix | None:
        """Return the longest earlier prompt that ended in one of this prompt's leading blocks, up to size `within`.

        What follows an earlier prompt's last full block is taken to be shared too: a prompt that contains exactly
        that block is nearly always its next turn. Where that is wrong, it is wrong by less than a block.
        """
        blocks = prompt.blocks
        if within < inf:
            blocks = blocks[: bisect_right(prompt.ends, within, 0, len(blocks))]
        for leaf in filter(None, map(self._leaves.get, reversed(blocks))):
            if leaf.size <= prompt.size:
                return leaf
        return None

    def tokens(self, size: float, tenant: str | None = None) -> float:
        """Expected tokens of the first `size` bytes of a tenant's prompt."""
        return TEMPLATE_TOKENS + size / self.size_per_token_of(tenant) if size else 0.0


class ExactCounter:
    """For prompts whose sizes are tokens already, as in recorded traces: there is nothing to learn."""

    size_per_token = 1.0

    def learn(self, prompt: Prompt | PackedPrompt, tokens: int, tenant: str | None = None) -> None:
        """It is known."""

    def size_per_token_of(self, tenant: str | None) -> float:
        """It is known."""
        return self.size_per_token

    def remember(self, prompt: Prompt | PackedPrompt, tokens: int) -> None:
        """It is known."""

    def known_leaf(self, prompt: Prompt, within: float = inf) -> None:
        """None is needed."""

    def tokens(self, size: float, tenant: str | None = None) -> float:
        return size


class PromptTokenEstimate:
    """Measures one prompt in tokens: exactly up to a known leaf, by the learned ratio beyond and before it."""

    __slots__ = ("_counter", "_leaf", "_tenant")

    def __init__(
        self, counter: TokenCounter | ExactCounter, prompt: Prompt, held: float = inf, tenant: str | None = None
    ) -> None:
        """`held`: the longest prefix that any engine has cached; a counted prompt that ends beyond it is not."""
        self._counter, self._tenant = counter, tenant
        self._leaf = counter.known_leaf(prompt, held)

    def tokens(self, size: float) -> float:
        """Tokens of the prompt's first `size` bytes."""
        leaf = self._leaf
        if leaf is None:
            return self._counter.tokens(size, self._tenant)
        if size == leaf.covered:
            return leaf.tokens
        if size < leaf.covered:
            return leaf.tokens * size / leaf.size
        return leaf.tokens + max(0.0, size - leaf.size) / self._counter.size_per_token_of(self._tenant)
