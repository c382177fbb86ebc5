"""What was decided of a request to a ladder before anything was asked. A value."""

from __future__ import annotations

from msgspec import Struct

from cascade.ladder import Ladder
from cascade.ladder_file import LadderFile, Stage
from gateway.cascades.constraints import Terms
from gateway.cascades.escalation_share import Share
from gateway.cascades.features import Asked
from gateway.cascades.judge import HoldBack
from gateway.cascades.logprobs import WITH_LOGPROBS
from routing.request import Api, Usage


class Plan(Struct, frozen=True):
    """Of one request."""

    ladder: Ladder
    file: LadderFile | None
    """As shadow samples have corrected it."""
    hold_back: HoldBack
    asked: Asked
    terms: Terms
    rungs: tuple[int, ...]
    """Those that can and may answer, the cheapest first."""
    start: int
    api: Api
    stream: bool
    sequences: int
    share: Share
    tokens: int = 0
    """About so many in its prompt."""
    output_tokens: int = 0
    """And in its answer."""
    draw: float = 0.0
    """In [0, 1), drawn for this request."""
    session: str | None = None

    def model(self, at: int) -> str:
        """That of a rung, counted from the cheapest."""
        return self.ladder.rungs[at].model

    def cost(self, at: int, usage: Usage) -> float:
        """Of so much on a rung, in the currency of the prices."""
        warm, price = usage.cached_tokens or 0, self.ladder.rungs[at].price
        return price.of(cold_tokens=usage.prompt_tokens - warm, warm_tokens=warm, output_tokens=usage.completion_tokens)

    @property
    def judges(self) -> bool:
        """Whether an answer can be judged that is not the last that may be had."""
        if not self.terms.climbs or self.sequences > 1:
            return False
        if self.stream and not self.hold_back.whole:
            is_of_window = self.file is not None and self.file.stage in (Stage.WINDOW, Stage.REASONING)
            return self.ladder.window is not None and is_of_window
        return self.ladder.whole

    @property
    def top(self) -> int | None:
        """So many log-probabilities of each token are wanted; None where no signal is made of them."""
        window = self.ladder.window
        needs_signal = self.file is not None and self.file.stage is not Stage.PROMPT
        return window.top if window and needs_signal and self.api in WITH_LOGPROBS else None
