"""The client's request, sent to one model of a cascade after the other."""

from __future__ import annotations

from collections.abc import Callable

from cascade.judging import Judge
from cascade.logprobs import Trim, with_logprobs
from gateway.pipeline.transport import Carries
from routing.reading import Reading
from routing.request import Request


class Rungs:
    """Builds the model requests of one downstream request.

    `read` reads the client's body as a request to another model; it may be called until the response begins.
    """

    def __init__(self, carrier: Carries, read: Callable[[str], Reading]) -> None:
        self._carrier = carrier
        self._read = read

    def ask(self, model: str, top: int | None) -> tuple[Request, Trim | None]:
        """Have the transport send the request for `model`, with `top` log-probabilities per token, None for none.

        Returns the request, and what has to be taken out of the response, None for nothing.
        """
        reading = self._read(model)
        request, body, trim = reading.request, reading.body, None
        if top is not None:
            body, trim = with_logprobs(request.api, body, top)
        self._carrier.ask_rung(body, model, usage_added=reading.usage_added)
        return request, trim

    def judge(self, judge: Judge | None) -> None:
        """Hold the next answer back until `judge` has accepted it; None: relay it at once."""
        self._carrier.judged_by(judge)
