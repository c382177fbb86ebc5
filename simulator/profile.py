"""What a simulated engine is made of: its speeds and its sizes. No queue, no clock."""

from __future__ import annotations

from dataclasses import dataclass


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

    def __post_init__(self) -> None:
        for name in ("prefill_tokens_per_s", "prefill_quadratic_tokens", "step_base_s", "block_size", "time_scale"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be > 0")
        for name in ("step_per_sequence_s", "step_per_kv_token_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must be >= 0")
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ValueError("max_num_seqs: must be from 1 to max_num_batched_tokens, so that every decode fits a step")
        if self.kv_capacity_tokens < self.block_size:
            raise ValueError("kv_capacity_tokens: must hold at least one block")

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
