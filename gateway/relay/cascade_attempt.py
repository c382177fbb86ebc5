"""A client's body asked of one rung after the other."""

from __future__ import annotations

from collections.abc import Callable

from cascade.logprobs import Trim, with_logprobs
from gateway.relay.downstream_transport import Carries
from routing.reading import Reading
from routing.request import Request


class Rungs:
    """One request's. `read` reads the body that the client sent as one to another model; it may until the answer
    begins.
    """

    def __init__(self, carrier: Carries, read: Callable[[str], Reading]) -> None:
        self._carrier = carrier
        self._read = read

    def ask(self, model: str, top: int | None) -> tuple[Request, Trim | None]:
        reading = self._read(model)
        request, body, trim = reading.request, reading.body, None
        if top is not None:
            body, trim = with_logprobs(request.api, body, top)
        self._carrier.ask_rung(body, model, usage_added=reading.usage_added)
        return request, trim
