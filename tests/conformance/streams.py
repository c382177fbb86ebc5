"""How a stream is cut and what its events are: the gateway relays the bytes as they come and reads few of them."""

from typing import Any

import pytest

from tests.conformance.subject import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Subject

LONG = 1000
"""Words; a prompt that takes any pod a while."""

OPENAI = (CHAT, COMPLETIONS)
ASK_USAGE = {"include_usage": True}


def text_of(path: str, values: list[Any]) -> str:
    """What an OpenAI stream says."""
    choices = [choice for value in values for choice in value["choices"]]
    return "".join(choice["delta"].get("content") or "" if path == CHAT else choice["text"] for choice in choices)


class StreamsContract:
    """Tried on a pod by a test class of its own that inherits it."""

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
    async def test_the_head_comes_before_the_first_token(self, subject: Subject, path: str) -> None:
        """200 means accepted, not that anything was generated: the time to first token is the body's."""
        answer = await subject.stream(path, subject.prompt(LONG))
        assert answer.head_came_alone

    @pytest.mark.parametrize("path", APIS)
    async def test_a_stream_is_chunked_events(self, subject: Subject, path: str) -> None:
        """Each event comes in a chunk of its own, whole, and ends with one empty line."""
        answer = await subject.stream(path, tokens=5, stream_options=ASK_USAGE if path in OPENAI else None)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "content-length" not in answer.headers
        for chunk in answer.chunks:
            assert chunk.startswith(b"data: " if path in OPENAI else b"event: ")
            assert chunk.endswith(b"\n\n")
            assert chunk.count(b"\n\n") == 1
        assert len(answer.events()) == len(answer.chunks)

    async def test_chat_events(self, subject: Subject) -> None:
        """The role, then text, then the reason to end, then [DONE]; no word of usage unasked."""
        answer = await subject.stream(CHAT, tokens=5)
        *values, done = answer.values()
        assert done is None
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert b'"usage"' not in answer.body
        assert {value["object"] for value in values} == {"chat.completion.chunk"}
        assert {value["id"] for value in values} == {values[0]["id"]}
        first, *rest = values
        assert list(first) == ["id", "object", "created", "model", "choices", "prompt_token_ids", "prompt_text"]
        assert first["choices"][0] == {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        for value in rest[:-1]:
            assert list(value) == ["id", "object", "created", "model", "choices"]
            assert list(value["choices"][0]) == ["index", "delta", "logprobs", "finish_reason", "token_ids"]
        (last,) = rest[-1]["choices"]
        assert list(last) == ["index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids"]
        assert last["finish_reason"] == "length"

    async def test_the_last_event_has_the_fingerprint(self, subject: Subject) -> None:
        """It closes the event that says why the answer ended, unless an event of usage comes behind it."""
        *_, last, _ = (await subject.stream(CHAT)).values()
        assert list(last)[-1] == "system_fingerprint"

    async def test_completion_events(self, subject: Subject) -> None:
        """Text, the last with the reason to end, then [DONE]; no word of usage unasked."""
        answer = await subject.stream(COMPLETIONS, tokens=5)
        *values, done = answer.values()
        assert done is None
        assert b'"usage"' not in answer.body
        assert {value["object"] for value in values} == {"text_completion"}
        for value in values:
            assert list(value)[:5] == ["id", "object", "created", "model", "choices"]
            (choice,) = value["choices"]
            assert list(choice) == [
                *("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"),
            ]
        assert [value["choices"][0]["finish_reason"] for value in values][-1] == "length"

    @pytest.mark.parametrize("path", OPENAI)
    async def test_usage_is_an_event_of_its_own_before_the_last(self, subject: Subject, path: str) -> None:
        """The event that we inject and withhold: no choices, right before [DONE], with what was warm."""
        prompt = subject.prompt(LONG)
        await subject.ask(path, prompt)
        *values, usage, done = [
            event.value for event in (await subject.stream(path, prompt, stream_options=ASK_USAGE)).events()
        ]
        assert done is None
        assert all("usage" not in value for value in values)
        assert list(usage) == ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"]
        assert usage["choices"] == []
        reported = usage["usage"]
        assert list(reported) == ["prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"]
        assert reported["total_tokens"] == reported["prompt_tokens"] + reported["completion_tokens"]
        assert reported["prompt_tokens_details"]["cached_tokens"] >= LONG // 2

    @pytest.mark.parametrize("path", OPENAI)
    async def test_running_usage_stands_in_every_event(self, subject: Subject, path: str) -> None:
        """A client may ask to be told all along; what was warm still stands in the last alone."""
        running = {"include_usage": True, "continuous_usage_stats": True}
        *values, last, _ = [
            event.value for event in (await subject.stream(path, tokens=5, stream_options=running)).events()
        ]
        counts = [value["usage"]["completion_tokens"] for value in values]
        assert counts == sorted(counts)
        assert counts[-1] == last["usage"]["completion_tokens"] == 5
        assert all("prompt_tokens_details" not in value["usage"] for value in values)
        assert "prompt_tokens_details" in last["usage"]

    @pytest.mark.parametrize("path", OPENAI)
    async def test_a_stream_says_what_the_unary_answer_says(self, subject: Subject, path: str) -> None:
        """Streaming changes the form only."""
        prompt = subject.prompt()
        (choice,) = (await subject.ask(path, prompt, tokens=8))["choices"]
        complete = choice["message"]["content"] if path == CHAT else choice["text"]
        *values, _ = (await subject.stream(path, prompt, tokens=8)).values()
        assert text_of(path, values) == complete

    async def test_choices_of_a_batch_are_distinguished(self, subject: Subject) -> None:
        """Several prompts, several answers each: every choice ends once, and one usage covers them all."""
        requested = subject.request(COMPLETIONS, tokens=2, stream=True, n=2, ignore_eos=True, stream_options=ASK_USAGE)
        requested |= {"prompt": [subject.prompt(), subject.prompt()], "temperature": 0.5}
        *values, usage, _ = (await subject.post(COMPLETIONS, requested)).values()
        choices = [choice for value in values for choice in value["choices"]]
        assert sorted(choice["index"] for choice in choices if choice["finish_reason"]) == [0, 1, 2, 3]
        assert usage["usage"]["completion_tokens"] == 8

    async def test_response_events(self, subject: Subject) -> None:
        """Two events before the first token, usage in the last, and no [DONE]."""
        prompt = subject.prompt(LONG)
        await subject.ask(RESPONSES, prompt)
        events = (await subject.stream(RESPONSES, prompt, tokens=2)).events()
        names = [event.name for event in events]
        assert names[:4] == [
            *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
        ]
        assert set(names[4:-4]) == {"response.output_text.delta"}
        assert names[-4:] == [
            *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
            "response.completed",
        ]
        for number, event in enumerate(events):
            assert (event.value["type"], event.value["sequence_number"]) == (event.name, number)
        assert events[0].value["response"]["usage"] is None
        last = events[-1].value["response"]
        assert last["id"] == events[0].value["response"]["id"]
        assert last["usage"]["output_tokens"] == 2
        assert last["usage"]["input_tokens_details"]["cached_tokens"] >= LONG // 2

    async def test_message_events(self, subject: Subject) -> None:
        """Nothing before the first token, usage in the last but one, and no [DONE]."""
        prompt = subject.prompt(LONG)
        await subject.ask(MESSAGES, prompt)
        events = (await subject.stream(MESSAGES, prompt, tokens=2)).events()
        names = [event.name for event in events]
        assert names[:2] == ["message_start", "content_block_start"]
        assert set(names[2:-3]) == {"content_block_delta"}
        assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert all(event.value["type"] == event.name for event in events)
        assert list(events[0].value["message"]["usage"]) == ["input_tokens", "output_tokens"]
        whole_prompt = events[0].value["message"]["usage"]["input_tokens"]
        assert events[-2].value["delta"]["stop_reason"] == "max_tokens"
        usage = events[-2].value["usage"]
        assert usage["output_tokens"] == 2
        assert usage["cache_read_input_tokens"] >= LONG // 2
        reported = usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]
        assert reported == whole_prompt

    @pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
    async def test_the_others_ignore_stream_options(self, subject: Subject, path: str) -> None:
        """Only OpenAI's older APIs know the option; asking for it elsewhere does no harm."""
        names = [event.name for event in (await subject.stream(path, stream_options=ASK_USAGE)).events()]
        assert names[-1] in {"response.completed", "message_stop"}
