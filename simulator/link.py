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

    def __post_init__(self) -> None:
        if self.bytes_per_token < 1 or self.bytes_per_s <= 0:
            raise ValueError("bytes_per_token, bytes_per_s: must be > 0")
        if self.fixed_s < 0:
            raise ValueError("fixed_s: must be >= 0")

    def wire_s(self, tokens: int) -> float:
        """Return the seconds for which the KV of `tokens` tokens occupies the link."""
        return tokens * self.bytes_per_token / self.bytes_per_s
