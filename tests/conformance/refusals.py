"""How a pod says no: three shapes, by who noticed the fault. The gateway turns all of them into its own.

The API answers `{"error": {...}}`; on the Anthropic path only what the API itself noticed has Anthropic's shape, and
what the parser noticed has OpenAI's; bytes that are no text, and paths that are none, get `{"detail": ...}`.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.conformance.subject import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Subject
from tests.conformance.wire import Body, Exchange

OPENAI = (CHAT, COMPLETIONS, RESPONSES)
PARSER = "Bad Request"
API = "BadRequestError"


def assert_openai_error(answer: Exchange, status: int, kind: str, param: str | None) -> None:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert list(answer.json()) == ["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    assert error["message"]


def assert_anthropic_error(answer: Exchange, status: int, kind: str) -> None:
    assert answer.status == status
    body = answer.json()
    assert list(body) == ["type", "error"]
    assert body["type"] == "error"
    assert list(body["error"]) == ["type", "message"]
    assert body["error"]["type"] == kind


@dataclass(frozen=True, slots=True)
class Fault:
    """A field that is wrong, and which parameter the refusal names."""

    field: str
    value: Any
    kind: str
    param: str | None

    def __str__(self) -> str:
        return f"{self.field}={self.value}"


FIELD_FAULTS = (
    Fault("model", 5, PARSER, "body.model"),
    Fault("temperature", "hot", PARSER, "body.temperature"),
    Fault("temperature", -1, API, "temperature"),
    Fault("stream", "perhaps", PARSER, "body.stream"),
)

CHAT_FAULTS = (
    Fault("messages", "Hello", PARSER, "body.messages"),
    Fault("messages", [], API, None),
    Fault("max_tokens", "many", PARSER, "body.max_tokens"),
    Fault("max_tokens", 0, API, "max_tokens"),
    Fault("max_tokens", 1 << 20, API, "max_tokens"),
    Fault("n", 0, API, None),
    Fault("stream_options", {"include_usage": True}, API, "stream_options"),
    Fault("cache_salt", "", API, "cache_salt"),
    Fault("cache_salt", "s" * 129, API, "cache_salt"),
    Fault("cache_salt", "a@b", API, "cache_salt"),
    Fault("cache_salt", "a\\b", API, "cache_salt"),
    Fault("priority", "high", PARSER, "body.priority"),
    Fault("kv_transfer_params", "some", PARSER, "body.kv_transfer_params"),
)


class RefusalsContract:
    """Tried on a pod by a test class of its own that inherits it."""

    def assert_refused(self, path: str, answer: Exchange, status: int, kind: str, param: str | None = None) -> None:
        """How a refusal is told; who tells it otherwise (the gateway) overrides this."""
        if path == MESSAGES and kind != PARSER:
            assert_anthropic_error(answer, status, kind)
        else:
            assert_openai_error(answer, status, kind, param)

    @pytest.mark.parametrize("path", APIS)
    @pytest.mark.parametrize(
        ("body", "param"), [(b'{"model":', "body.9"), (b"", "body"), (b"null", "body"), (b"[]", "body")]
    )
    async def test_what_is_no_object(self, subject: Subject, path: str, body: bytes, param: str) -> None:
        """The parser's refusal, in OpenAI's shape on every path."""
        self.assert_refused(path, await subject.post(path, body), 400, PARSER, param)

    @pytest.mark.parametrize("path", APIS)
    @pytest.mark.parametrize("body", [b'{"model": "\xff\xfe"}', b"[" * 100_000 + b"]" * 100_000])
    async def test_what_cannot_be_parsed_at_all(self, subject: Subject, path: str, body: bytes) -> None:
        """Bytes that are no UTF-8, and nesting without end."""
        answer = await subject.post(path, body)
        assert answer.status == 400
        assert answer.json() == {"detail": "There was an error parsing the body"}

    @pytest.mark.parametrize("path", APIS)
    async def test_another_content_type(self, subject: Subject, path: str) -> None:
        """Only JSON is read, and only when it says so."""
        answer = await subject.post(path, subject.request(path), {"Content-Type": "text/plain"})
        self.assert_refused(path, answer, 400, PARSER, None)

    @pytest.mark.parametrize("path", OPENAI)
    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_unknown_model(self, subject: Subject, path: str, stream: bool) -> None:
        """A proper status, streamed or not."""
        answer = await subject.post(path, subject.request(path, stream=stream) | {"model": "nobody"})
        self.assert_refused(path, answer, 404, "NotFoundError", "model")

    async def test_an_unknown_model_of_messages(self, subject: Subject) -> None:
        """The same in Anthropic's shape."""
        answer = await subject.post(MESSAGES, subject.request(MESSAGES) | {"model": "nobody"})
        self.assert_refused(MESSAGES, answer, 404, "NotFoundError")

    @pytest.mark.parametrize("path", OPENAI)
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_prompt_that_is_too_long(self, subject: Subject, path: str, stream: bool) -> None:
        """Refused before the head, streamed or not."""
        requested = subject.request(path, subject.prompt(subject.context_tokens + 1), stream=stream)
        answer = await subject.post(path, requested)
        self.assert_refused(path, answer, 400, API, "input_tokens")
        longest = f"This model's maximum context length is {subject.context_tokens} tokens."
        assert answer.json()["error"]["message"].startswith(longest)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_messages_that_are_too_long(self, subject: Subject, stream: bool) -> None:
        """The same in Anthropic's shape."""
        requested = subject.request(MESSAGES, subject.prompt(subject.context_tokens + 1), stream=stream)
        self.assert_refused(MESSAGES, await subject.post(MESSAGES, requested), 400, API)

    @pytest.mark.parametrize("path", OPENAI)
    @pytest.mark.parametrize("fault", FIELD_FAULTS, ids=str)
    async def test_a_wrong_field(self, subject: Subject, path: str, fault: Fault) -> None:
        """The refusal names the field."""
        answer = await subject.post(path, subject.request(path) | {fault.field: fault.value})
        self.assert_refused(path, answer, 400, fault.kind, fault.param)

    @pytest.mark.parametrize("fault", CHAT_FAULTS, ids=str)
    async def test_a_wrong_field_of_chat(self, subject: Subject, fault: Fault) -> None:
        """The refusal names the field, where one is to blame."""
        answer = await subject.post(CHAT, subject.request(CHAT) | {fault.field: fault.value})
        self.assert_refused(CHAT, answer, 400, fault.kind, fault.param)

    @pytest.mark.parametrize(
        ("path", "field", "kind", "param"),
        [
            (CHAT, "messages", PARSER, "body.messages"),
            (COMPLETIONS, "prompt", API, "prompt"),
            (RESPONSES, "input", PARSER, "body.input"),
            (MESSAGES, "messages", PARSER, "body.messages"),
            (MESSAGES, "model", PARSER, "body.model"),
        ],
    )
    async def test_a_missing_field(self, subject: Subject, path: str, field: str, kind: str, param: str) -> None:
        """What cannot be done without is named."""
        requested = subject.request(path)
        del requested[field]
        self.assert_refused(path, await subject.post(path, requested), 400, kind, param)

    async def test_no_messages_in_anthropics_shape(self, subject: Subject) -> None:
        """The API itself noticed, so the shape is its own."""
        answer = await subject.post(MESSAGES, subject.request(MESSAGES) | {"messages": []})
        self.assert_refused(MESSAGES, answer, 400, API)

    async def test_an_unknown_previous_response(self, subject: Subject) -> None:
        """Responses are not kept unless the pod was told to."""
        answer = await subject.post(RESPONSES, subject.request(RESPONSES, previous_response_id="resp_unknown"))
        self.assert_refused(RESPONSES, answer, 404, "invalid_request_error", "response_id")

    @pytest.mark.parametrize("body", [b'{"stream": "yes", ', b'{"stream": 1, ', b'{"stream": "on", '])
    async def test_what_reads_as_true_streams(self, subject: Subject, body: Body) -> None:
        """The pod is lenient about booleans; who forwards must be as lenient, or stricter."""
        assert isinstance(body, bytes)
        requested = body + b'"model": "%s", "prompt": "Hello", "max_tokens": 1}' % subject.model.encode()
        answer = await subject.post(COMPLETIONS, requested)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
