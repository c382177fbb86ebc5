"""An engine's answer becomes exactly what the next turn's prompt contains, or nothing where that is not certain."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading import answer_bytes
from routing.request import Api
from tests.routing.reading import wire
from tests.routing.reading.wire import Said, request_of

FIRST = {"role": "user", "content": "What is warm?"}
AGAIN = {"role": "user", "content": "And now?"}

pieces = st.integers(1, 6)


@given(wire.sayings, pieces)
def test_a_chat_answer_is_what_the_next_turn_contains(said: Said, pieces: int) -> None:
    """Streamed or whole, text or tool calls: the grown prompt is the prompt of the body that sends the answer back."""
    first = request_of(Api.CHAT, {"model": "m", "messages": [FIRST]}).prompt
    back = request_of(Api.CHAT, {"model": "m", "messages": [FIRST, wire.chat_message(said)]}).prompt
    assert first.extended(answer_bytes(Api.CHAT, wire.chat_answer(said), stream=False)) == back
    if not said.is_nothing:
        assert first.extended(answer_bytes(Api.CHAT, wire.chat_stream(said, pieces), stream=True)) == back


@given(wire.sayings, pieces)
def test_a_response_is_what_the_next_turn_contains(said: Said, pieces: int) -> None:
    """The output items a client appends to its input hash as the grown prompt does."""
    first = request_of(Api.RESPONSES, {"model": "m", "input": "Hi"}).prompt
    items = [{"role": "user", "content": "Hi"}, *wire.response_items(said)]
    back = request_of(Api.RESPONSES, {"model": "m", "input": items}).prompt
    assert first.extended(answer_bytes(Api.RESPONSES, wire.response_answer(said), stream=False)) == back
    assert first.extended(answer_bytes(Api.RESPONSES, wire.response_stream(said, pieces), stream=True)) == back


@given(wire.sayings.filter(lambda said: not said.is_nothing), pieces)
def test_an_anthropic_answer_is_what_the_next_turn_contains(said: Said, pieces: int) -> None:
    """Content blocks sent back hash as the grown prompt does, tool inputs included however their JSON was spaced."""
    first = request_of(Api.MESSAGES, {"model": "m", "messages": [FIRST]}).prompt
    answered = {"role": "assistant", "content": wire.message_blocks(said)}
    back = request_of(Api.MESSAGES, {"model": "m", "messages": [FIRST, answered]}).prompt
    assert first.extended(answer_bytes(Api.MESSAGES, wire.message_answer(said), stream=False)) == back
    assert first.extended(answer_bytes(Api.MESSAGES, wire.message_stream(said, pieces), stream=True)) == back


@given(wire.texts, wire.texts, pieces)
def test_a_completion_is_what_the_next_prompt_contains(prompt: str, text: str, pieces: int) -> None:
    """Prompt and completion sent back as one prompt hash as the grown prompt does."""
    first = request_of(Api.COMPLETIONS, {"model": "m", "prompt": "?" + prompt}).prompt
    back = request_of(Api.COMPLETIONS, {"model": "m", "prompt": "?" + prompt + text}).prompt
    assert first.extended(answer_bytes(Api.COMPLETIONS, wire.completions_answer(text), stream=False)) == back
    assert first.extended(answer_bytes(Api.COMPLETIONS, wire.completions_stream(text, pieces), stream=True)) == back


@given(wire.sayings.filter(lambda said: not said.is_nothing))
def test_one_answer_is_the_same_in_every_dialect(said: Said) -> None:
    """A conversation stays warm when its client changes the API."""
    chat = answer_bytes(Api.CHAT, wire.chat_answer(said), stream=False)
    assert chat == answer_bytes(Api.RESPONSES, wire.response_answer(said), stream=False)
    assert chat == answer_bytes(Api.MESSAGES, wire.message_answer(said), stream=False)


def test_a_stream_with_other_spacing_is_read_too() -> None:
    """Nothing hangs on how a pod spaces its JSON, nor on carriage returns."""
    event = b'data: {"choices": [ {"index" : 0, "delta": {"content": "warm"}} ]}\r\n\r\ndata: [DONE]\r\n\r\n'
    assert answer_bytes(Api.CHAT, event, stream=True) == b"\xffassistant\xfewarm"


SAID = Said("It is warm.", (("look", {"where": "here"}),))

STREAMS: dict[Api, bytes] = {
    Api.CHAT: wire.chat_stream(SAID),
    Api.COMPLETIONS: wire.completions_stream(SAID.text),
    Api.RESPONSES: wire.response_stream(SAID),
    Api.MESSAGES: wire.message_stream(SAID),
}


@pytest.mark.parametrize("api", list(STREAMS))
def test_a_cut_stream_says_nothing(api: Api) -> None:
    """Wherever a stream is cut before its last event, no answer is believed."""
    stream = STREAMS[api]
    assert answer_bytes(api, stream, stream=True)
    last_event = len(stream.rstrip()[: stream.rstrip().rfind(b"\n\n")])
    for end in range(last_event):
        assert answer_bytes(api, stream[:end], stream=True) == b""


def with_error(stream: bytes) -> bytes:
    error = {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}
    return stream.replace(b"data: [DONE]", b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]")


THOUGHT = wire.chat_event({"reasoning": "Hm."})
OLD_THOUGHT = wire.chat_event({"reasoning_content": "Hm."})
SECOND = wire.chat_event({"content": "It was."}, index=1)
PLAIN = wire.chat_event({"content": "It is."})


@pytest.mark.parametrize(
    ("api", "stream"),
    [
        (Api.CHAT, with_error(STREAMS[Api.CHAT])),
        (Api.COMPLETIONS, with_error(STREAMS[Api.COMPLETIONS])),
        (Api.CHAT, wire.sse([THOUGHT, PLAIN, "[DONE]"])),
        (Api.CHAT, wire.sse([OLD_THOUGHT, PLAIN, "[DONE]"])),
        (Api.CHAT, wire.sse([PLAIN, SECOND, "[DONE]"])),
        (Api.CHAT, b"data: {broken\n\ndata: [DONE]\n\n"),
        (Api.CHAT, b"data: [DONE]\n\n"),
        (Api.CHAT, b""),
        (Api.RESPONSES, wire.sse([{"type": "response.failed", "response": wire.response(SAID, "failed")}])),
        (Api.RESPONSES, b""),
        (Api.MESSAGES, wire.sse([{"type": "error", "error": {}}, {"type": "message_stop"}])),
        (Api.MESSAGES, wire.sse([{"type": "message_stop"}])),
        (
            Api.MESSAGES,
            wire.sse(
                [
                    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
                    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
                    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Yes."}},
                    {"type": "message_stop"},
                ]
            ),
        ),
        (Api.EMBEDDINGS, wire.sse(["[DONE]"])),
    ],
)
def test_what_is_not_certain_says_nothing(api: Api, stream: bytes) -> None:
    """Several answers, reasoning, errors inside the stream: nothing is believed of these."""
    assert answer_bytes(api, stream, stream=True) == b""


def chat_with(change: Callable[[dict[str, object]], None]) -> bytes:
    answer = json.loads(wire.chat_answer(SAID))
    change(answer)
    return json.dumps(answer).encode()


@pytest.mark.parametrize(
    ("api", "answer"),
    [
        (Api.CHAT, chat_with(lambda answer: answer.update(choices=[]))),
        (Api.CHAT, chat_with(lambda answer: answer.update(choices=[{"index": 0}, {"index": 1}]))),
        (Api.CHAT, chat_with(lambda answer: answer.update(choices=[{"message": {"content": "a", "reasoning": "b"}}]))),
        (Api.CHAT, b'{"error": {"message": "no"}}'),
        (Api.CHAT, b"not json"),
        (Api.CHAT, b'{"choices": ' + b"[" * 100_000),
        (Api.CHAT, b'{"choices": [{"message": {"content": "\xff"}}]}'),
        (Api.COMPLETIONS, b'{"choices": [{"text": "a"}, {"text": "b"}]}'),
        (Api.RESPONSES, json.dumps(wire.response(SAID, "in_progress")).encode()),
        (Api.RESPONSES, b'{"status": "completed", "output": [{"type": "reasoning"}, {"type": "message"}]}'),
        (Api.MESSAGES, b'{"type": "error", "error": {"type": "api_error"}}'),
        (Api.MESSAGES, b'{"type": "message", "content": [{"type": "thinking", "thinking": "Hm."}]}'),
        (Api.SCORE, b'{"data": []}'),
    ],
)
def test_a_whole_answer_that_is_not_certain_says_nothing(api: Api, answer: bytes) -> None:
    """The same for answers that are not streamed."""
    assert answer_bytes(api, answer, stream=False) == b""


@given(st.sampled_from(list(Api)), st.binary(max_size=200) | st.sampled_from(list(STREAMS.values())), st.booleans())
def test_any_bytes_are_survived(api: Api, raw: bytes, stream: bool) -> None:
    """Whatever a pod sends, reading its answer raises nothing."""
    assert isinstance(answer_bytes(api, raw, stream=stream), bytes)
