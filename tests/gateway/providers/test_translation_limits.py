"""Translation of what no provider should send: split at any byte, very long, nested, of other types."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from gateway.pipeline.attempt import AttemptStatus
from gateway.providers.chat_to_messages import MAX_CALLS, MessageStreamAsChat, messages_body
from gateway.providers.exchange import ProviderExchange, TranslatedBody
from gateway.providers.messages_to_chat import ChatAsMessage, ChatStreamAsMessage
from gateway.providers.translation import MAX_EVENT_BYTES, EventSplitter, Untranslatable

NESTED = "[" * 100_000

EVENTS = [
    {"type": "message_start", "message": {"id": "m", "model": "x", "usage": {"input_tokens": 3}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "f"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a":"é"}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 4}},
    {"type": "message_stop"},
]


def stream_of(end: bytes) -> bytes:
    """The events as a provider writes them, with this end of a line."""
    return b"".join(
        b"event: x" + end + b": note" + end + b"data: " + msgspec.json.encode(each) + end + end for each in EVENTS
    )


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_stream_is_the_same_however_it_is_split(end: bytes) -> None:
    """At any one byte, and at every byte."""
    stream = stream_of(end)

    def translated(*pieces: bytes) -> bytes:
        translator = MessageStreamAsChat(1, includes_usage=True)
        return b"".join(map(translator.feed, pieces)) + translator.finish()

    expected = translated(stream)
    assert b"[DONE]" in expected
    assert b"completion_tokens" in expected
    for at in range(1, len(stream)):
        assert translated(stream[:at], stream[at:]) == expected
    assert translated(*(bytes((each,)) for each in stream)) == expected


class CountingBytes(bytes):
    """Counts how many bytes of it are looked at by joining it to others."""

    joined = 0

    def __radd__(self, before: bytes) -> bytes:
        type(self).joined += len(before)
        return before + bytes(self)


def test_a_long_event_costs_no_more_by_its_number_of_reads() -> None:
    """What has come of it is not copied with each read."""
    splitter = EventSplitter()
    for _ in range(1000):
        assert list(splitter.feed(CountingBytes(b"x" * 1000))) == []
    assert CountingBytes.joined == 0
    with pytest.raises(Untranslatable, match="too large"):
        list(splitter.feed(b"x" * MAX_EVENT_BYTES))


@pytest.mark.parametrize("index", [[], {}, None, "x", 1.5])
def test_an_index_of_any_type_is_translated(index: Any) -> None:
    """It only has to be the same for the events of one block."""
    translator = MessageStreamAsChat(1, includes_usage=False)
    start = {"type": "content_block_start", "index": index, "content_block": {"type": "tool_use", "id": "t"}}
    delta = {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": "{}"}}
    out = translator.feed(b"".join(b"data: " + msgspec.json.encode(each) + b"\n\n" for each in (start, delta)))
    assert b'"arguments":"{}"' in out


def test_nested_arguments_are_no_error() -> None:
    """Neither of a client's tool calls nor of a provider's."""
    function = {"name": "f", "arguments": NESTED}
    calls = [{"id": "c", "type": "function", "function": function}]
    body = messages_body({"messages": [{"role": "assistant", "tool_calls": calls}]})
    assert body["messages"][0]["content"][0]["input"] == {}
    message = ChatAsMessage().translate({"choices": [{"message": {"tool_calls": calls}}]})
    assert message["content"][0]["input"] == {}


class FailingTranslator(ChatStreamAsMessage):
    """Raises what no translator should."""

    def finish(self) -> bytes:
        """Fail at the end of the body, where the connection no longer knows the exchange."""
        raise TypeError("of the provider's making")


class EndedRelay:
    """Notes how an attempt was ended."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.how: tuple[AttemptStatus, str] | None = None

    def discard(self, end: AttemptStatus, detail: str) -> None:
        """End it."""
        self.how = end, detail
        self.ended.set_result(None)


async def test_the_attempt_ends_whatever_a_translator_raises() -> None:
    """Otherwise its request would wait for ever, and hold its money."""
    relay = EndedRelay()
    exchange = ProviderExchange(
        cast("Any", relay), None, "acme-eu", note_busy=lambda _: None, note_rejected=lambda _: None
    )
    TranslatedBody(exchange, FailingTranslator(), cast("Any", None)).end()
    assert relay.how is not None
    assert relay.how[0] is AttemptStatus.INVALID_RESPONSE
    assert "making" not in relay.how[1]


def test_what_is_kept_of_a_stream_has_bounds() -> None:
    """Tool calls that begin without end, and usage with ever new names."""
    translator = MessageStreamAsChat(1, includes_usage=True)
    for at in range(1000):
        translator.feed(b"data: %b\n\n" % msgspec.json.encode({"type": "message_delta", "usage": {f"x{at}": "x" * 99}}))
    assert translator._usage == {}
    call = {"type": "tool_use", "id": "t", "name": "f"}
    starts = [{"type": "content_block_start", "index": at, "content_block": call} for at in range(MAX_CALLS + 1)]
    with pytest.raises(Untranslatable, match="tool calls"):
        translator.feed(b"".join(b"data: %b\n\n" % msgspec.json.encode(each) for each in starts))
