"""In which mode Envoy's filter works, told anew by every stream, and how much of the answer it lets us see."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gateway.ext_proc.messages_pb2 import ProtocolConfiguration
from gateway.pipeline.outcome import Shell

NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX = range(5)
"""As Envoy numbers its body modes."""

NAMES = {
    NONE: "none",
    STREAMED: "streamed",
    BUFFERED: "buffered",
    BUFFERED_PARTIAL: "buffered_partial",
    FULL_DUPLEX: "full_duplex",
}


SHELLS = {
    (request, response): Shell("extproc", f"{NAMES[request]}/{NAMES[response]}")
    for request in NAMES
    for response in NAMES
}


class Sight(Enum):
    """How much of an answer we see, and may do about it."""

    BLIND = "blind"
    """Its head: what it took is estimated."""
    WATCHING = "watching"
    """All of it, and nothing of it can be changed: settled exactly."""
    FULL = "full"
    """All of it goes through us: settled exactly, cut at a limit, told in the client's dialect where it failed."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Of one stream."""

    request: int
    response: int
    body_comes_unasked: bool = False
    """STREAMED: the body is sent without waiting for what is said about the headers."""

    @property
    def sight(self) -> Sight:
        if self.response == NONE:
            return Sight.BLIND
        return Sight.FULL if self.response == FULL_DUPLEX else Sight.WATCHING

    @property
    def answers_headers_first(self) -> bool:
        """Whether no body comes before the headers are answered."""
        return self.request in (BUFFERED, BUFFERED_PARTIAL) or (
            self.request == STREAMED and not self.body_comes_unasked
        )

    @property
    def shell(self) -> Shell:
        """How it is called on a receipt."""
        return SHELLS[self.request, self.response]


USUAL = Modes(FULL_DUPLEX, FULL_DUPLEX)
"""Where an Envoy does not say: what gateways set up for an endpoint picker."""

_KNOWN = {
    (request, response, unasked): Modes(request, response, unasked)
    for request in NAMES
    for response in NAMES
    for unasked in (False, True)
}


def modes_of(config: ProtocolConfiguration) -> Modes:
    """What a stream's first message says; a mode that is newer than we are is taken as full duplex."""
    asked = (
        config.request_body_mode,
        config.response_body_mode,
        config.send_body_without_waiting_for_header_response,
    )
    return _KNOWN.get(asked, USUAL)
