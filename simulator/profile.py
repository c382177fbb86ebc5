"""What a simulated engine is made of: its speeds and its sizes. No queue, no clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

POSITIVE = (
    *("prefill_tokens_per_s", "prefill_quadratic_tokens", "step_base_s", "block_size", "time_scale"),
    "host_load_tokens_per_s",
)

NOT_NEGATIVE = (
    *("step_per_sequence_s", "step_per_kv_token_s"),
    *("request_s", "request_token_s", "request_step_s", "request_step_token_s"),
    *("wake_s", "host_kv_tokens", "speculative_tokens", "draft_s"),
)


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine's speeds and sizes; the defaults are a mid-sized model on one modern GPU.

    `prefill_quadratic_tokens` is L0: a token at context x costs (1 + x / L0) times a token at context 0. `time_scale`
    says how many engine seconds pass in one real second; the engine itself never reads it.
    """

    prefill_tokens_per_s: float = 12_000.0
    prefill_quadratic_tokens: float = 100_000.0
    step_base_s: float = 0.012
    step_per_sequence_s: float = 0.000_1
    step_per_kv_token_s: float = 0.000_000_02
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    kv_capacity_tokens: int = 1_000_000
    block_size: int = 16
    time_scale: float = 1.0
    by_priority: bool = False
    """Lower priority first, as `--scheduling-policy priority`; otherwise first come, first served."""
    step_table: tuple[tuple[int, float], ...] = ()
    """Seconds of a step by its batched tokens, decodes and chunks of prefill together: (tokens, seconds) in ascending
    order of tokens, linear between them. Replaces `step_base_s` and the constant part of prefill; empty: no table."""
    request_s: float = 0.0
    """Seconds of the API server for one request. It handles requests one after another, each before its engine sees
    it."""
    request_token_s: float = 0.0
    """The same for each token of the prompt."""
    request_step_s: float = 0.0
    """Seconds by which a request that arrives extends the step in flight, where API server and engine share a core."""
    request_step_token_s: float = 0.0
    """The same for each token of the prompt."""
    wake_s: float = 0.0
    """Seconds by which the first step after an idle time is longer."""
    speculative_tokens: int = 0
    """Tokens that are drafted for each decoding sequence in each step, and verified in the next."""
    acceptance_rate: float = 0.0
    """Share of drafted tokens that are accepted, each on condition that those before it were. A model: all sequences of
    a step gain the same number of tokens, and over steps the mean is exact."""
    draft_s: float = 0.0
    """Seconds by which drafting extends a step in which sequences decode."""
    host_kv_tokens: int = 0
    """KV tokens that native offloading keeps in the host's memory; 0: no offloading."""
    host_load_tokens_per_s: float = 200_000.0
    """How fast they are loaded into the engine's cache, one sequence's after another's, beside the steps."""
    caches_prefixes: bool = True
    """`--enable-prefix-caching`; else every prompt is computed from its first token."""
    async_scheduling: bool = False
    """A step is planned when the one before it begins, as vLLM does by default on accelerators: a request that arrives
    waits a step more, and blocks of an ended sequence are free a step later."""

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be > 0")
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must be >= 0")
        tokens = [point[0] for point in self.step_table]
        if tokens != sorted(set(tokens)) or any(point[0] < 1 or point[1] <= 0 for point in self.step_table):
            raise ValueError("step_table: wants ascending tokens from 1 on and seconds > 0")
        if not 0.0 <= self.acceptance_rate <= 1.0:
            raise ValueError("acceptance_rate: must be from 0 to 1")
        if not 1 <= self.max_num_seqs * self.decode_tokens <= self.max_num_batched_tokens:
            raise ValueError("max_num_seqs: must be from 1 to max_num_batched_tokens, so that every decode fits a step")
        if self.kv_capacity_tokens < self.block_size:
            raise ValueError("kv_capacity_tokens: must hold at least one block")

    @property
    def decode_tokens(self) -> int:
        """Tokens of a step for one decoding sequence: its next one, and those drafted behind it."""
        return 1 + self.speculative_tokens

    @property
    def tokens_per_step(self) -> float:
        """How many tokens a decoding sequence gains in a step on average."""
        return sum(self.acceptance_rate**place for place in range(self.decode_tokens))

    @property
    def kv_blocks(self) -> int:
        """How many blocks the cache has."""
        return self.kv_capacity_tokens // self.block_size

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` tokens occupy, the last one perhaps in part."""
        return -(-tokens // self.block_size)

    def prefill_s(self, start: int, tokens: int) -> float:
        """Seconds to compute `tokens` cold tokens behind `start` known ones.

        The integral of (1 + x / L0), and so the same in whatever chunks it is done.
        """
        middle = start + tokens / 2
        return tokens * (1.0 + middle / self.prefill_quadratic_tokens) / self.prefill_tokens_per_s

    def decode_s(self, sequences: int, kv_tokens: int) -> float:
        """What `sequences` decoding sequences with `kv_tokens` tokens of KV together add to a step."""
        return sequences * self.step_per_sequence_s + kv_tokens * self.step_per_kv_token_s

    def step_s(self, chunks: Iterable[tuple[int, int]], decoding: int, kv_tokens: int) -> float:
        """Return the seconds of one step: `decoding` sequences with `kv_tokens` tokens of KV together take a token
        each, and each chunk (tokens already known, tokens to compute) is prefilled.
        """
        if not self.step_table:
            seconds = self.step_base_s + self.decode_s(decoding, kv_tokens) + self._draft_s(decoding)
            seconds += decoding * self.speculative_tokens / self.prefill_tokens_per_s
            for start, tokens in chunks:
                seconds += self.prefill_s(start, tokens)
            return seconds
        batched, sequences, attention = decoding * self.decode_tokens, decoding, 0.0
        for start, tokens in chunks:
            batched += tokens
            sequences += 1
            attention += tokens * (start + tokens / 2)
        attention_s = attention / self.prefill_quadratic_tokens / self.prefill_tokens_per_s
        return self.forward_s(batched) + attention_s + self.decode_s(sequences, kv_tokens) + self._draft_s(decoding)

    def _draft_s(self, decoding: int) -> float:
        return self.draft_s if decoding else 0.0

    def forward_s(self, tokens: int) -> float:
        """Return the table's seconds for a step of so many tokens; beyond its ends its outer slopes go on.

        Raises IndexError without a table.
        """
        table = self.step_table
        after = bisect_right(table, tokens, key=lambda point: point[0])
        if len(table) == 1:
            return table[0][1]
        (low, low_s), (high, high_s) = table[max(min(after, len(table) - 1), 1) - 1 :][:2]
        return max(low_s + (tokens - low) * (high_s - low_s) / (high - low), min(low_s, high_s) / 2)

    def request_handling_s(self, prompt_tokens: int) -> float:
        """Return the API server's seconds for a request before its engine sees it."""
        return self.request_s + prompt_tokens * self.request_token_s

    def step_delay_s(self, prompt_tokens: int) -> float:
        """Return by how much the arrival of a request extends the step in flight."""
        return self.request_step_s + prompt_tokens * self.request_step_token_s
