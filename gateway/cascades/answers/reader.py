"""Takes answers in as evidence, of each API that generates. What is not as the API says is passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from gateway.cascades.answers.choices import hear_choices
from gateway.cascades.answers.messages import hear_block, hear_message
from gateway.cascades.answers.responses import hear_response, hear_response_event
from gateway.cascades.evidence import Evidence
from routing.request import Api

Hear = Callable[[bytes, Evidence], None]

STREAMS: dict[Api, Hear] = {
    Api.CHAT: hear_choices,
    Api.COMPLETIONS: hear_choices,
    Api.RESPONSES: hear_response_event,
    Api.MESSAGES: hear_block,
}

WHOLES: dict[Api, Hear] = {
    Api.CHAT: hear_choices,
    Api.COMPLETIONS: hear_choices,
    Api.RESPONSES: hear_response,
    Api.MESSAGES: hear_message,
}

DATA = b"data:"

UNLIKE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised by what is not as its API says."""


def hear_events(api: Api, events: bytes, evidence: Evidence) -> None:
    """Take in whole events of a stream."""
    hear = STREAMS.get(api)
    if hear is None:
        return
    for told in _told(events):
        try:
            hear(told, evidence)
        except UNLIKE:
            continue


def hear_whole(api: Api, body: bytes, evidence: Evidence) -> None:
    """Take in an answer in one piece."""
    hear = WHOLES.get(api)
    if hear is not None:
        try:
            hear(body, evidence)
        except UNLIKE:
            return


def _told(events: bytes) -> Iterator[bytes]:
    for line in events.split(b"\n"):
        if line.startswith(DATA) and not line.endswith(b"[DONE]"):
            yield line[5:]
