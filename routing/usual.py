"""What prompts and answers are usually like here: how long a prefill takes, and how long an answer that nothing stalls.

Running means over all engines: the first few count in full, later ones fade. Reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 50.0
"""About how many of the last count."""


@dataclass(slots=True)
class Mean:
    """A mean that forgets."""

    value: float = 0.0
    seen: float = 0.0

    def observe(self, value: float) -> None:
        if self.seen < MEMORY:
            self.seen += 1
        self.value += (value - self.value) / self.seen


class Usual:
    """One per router."""

    def __init__(self, step_s: float) -> None:
        """`step_s`: a step in which nobody prefills. That of a prior: what is learned of steps has stalls in it."""
        self._step_s = step_s
        self._prefill = Mean()
        self._answer_tokens = Mean()

    def asked(self, own_s: float) -> None:
        """A prompt was placed whose own prefill takes so long."""
        if own_s > 0:
            self._prefill.observe(own_s)

    def answered(self, tokens: int) -> None:
        """An answer has come, of so many tokens after its first."""
        self._answer_tokens.observe(max(tokens, 1))

    @property
    def prefill_s(self) -> float:
        """What computing the cold part of a prompt takes; 0 before any was seen."""
        return self._prefill.value

    @property
    def stream_s(self) -> float:
        """What an answer would take behind its first token, were it alone; 0 before any was seen."""
        return self._answer_tokens.value * self._step_s
