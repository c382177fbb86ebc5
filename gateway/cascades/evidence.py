"""What an answer shows of itself while it comes: how sure its tokens were, what it says, how it ended.

Text is kept only until an answer is judged, and goes no further than that. Knows no API, and judges nothing.
"""

from __future__ import annotations

from msgspec import Struct, field

Token = tuple[float, tuple[float, ...]]
"""The log-probability of a token that was said, and those of the likeliest at its place, best first."""


class Evidence(Struct):
    """Grows with the answer. Of several answers to one prompt only the first is looked at."""

    answer: list[Token] = field(default_factory=list)
    """The tokens of the answer, reasoning left out."""
    reasoning: list[Token] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    arguments: dict[int, list[str]] = field(default_factory=dict)
    """Of the tools that are called, by their place."""
    pieces: int = 0
    """Of the answer, however they were counted: where no log-probabilities come, an event is a token."""
    reasoning_pieces: int = 0
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far."""
        return max(self.pieces, len(self.answer))

    @property
    def reasoning_tokens(self) -> int:
        return max(self.reasoning_pieces, len(self.reasoning))

    def said(self) -> str:
        """The text of the answer so far."""
        return "".join(self.text)

    def calls(self) -> list[str]:
        """The arguments of each tool that is called, as JSON text."""
        return ["".join(pieces) for pieces in self.arguments.values()]
