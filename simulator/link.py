"""The wire between two engines' caches: what it takes to bring KV over. No queue, no clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """One engine's way out; the defaults are an 8-billion-parameter model with grouped heads over one 200 Gb/s card.

    `fixed_s` passes once a transfer, whatever its size, without occupying the link: handshake, descriptors,
    notification.
    """

    bytes_per_token: int = 131_072
    bytes_per_s: float = 25e9
    fixed_s: float = 0.005
    descriptor_tokens: int = 128
    """Tokens whose KV is sent as one piece."""
    descriptor_s: float = 0.0
    """Seconds for which each piece occupies the link beside its bytes."""

    def __post_init__(self) -> None:
        if self.bytes_per_token < 1 or self.bytes_per_s <= 0 or self.descriptor_tokens < 1:
            raise ValueError("bytes_per_token, bytes_per_s, descriptor_tokens: must be > 0")
        if self.fixed_s < 0 or self.descriptor_s < 0:
            raise ValueError("fixed_s, descriptor_s: must be >= 0")

    def descriptors(self, tokens: int) -> int:
        """Return in how many pieces the KV of `tokens` tokens is sent."""
        return -(-tokens // self.descriptor_tokens)

    def wire_s(self, tokens: int) -> float:
        """Return the seconds for which the KV of `tokens` tokens occupies the link."""
        return tokens * self.bytes_per_token / self.bytes_per_s + self.descriptors(tokens) * self.descriptor_s
