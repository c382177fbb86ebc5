"""The contracts of a pod, tried on the gateway in front of real pods: but for its refusals it answers as a pod does.

What is different is so on purpose. Each difference is an override here, whose docstring gives the reason.
"""

from typing import Any

import pytest

from tests.conformance.answers import LONG, AnswersContract, prompt_and_cached, unary_blocks
from tests.conformance.refusals import CHAT_FAULTS, OPENAI, Fault, RefusalsContract
from tests.conformance.streams import ASK_USAGE, StreamsContract
from tests.conformance.subject import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Subject
from tests.conformance.surface import SurfaceContract
from tests.conformance.wire import Body, Exchange
from tests.vllm.gateways import Gateway
from tests.vllm.pods import BLOCK_TOKENS, CONTEXT_TOKENS, Pod

NOT_THE_CLIENTS = ("cache_salt", "priority", "kv_transfer_params")
"""Fields that are stripped unread: what is wrong in them is nobody's affair."""


class ThroughTheGateway:
    @pytest.fixture
    def subject(self, gateway: Gateway, pods: tuple[Pod, ...]) -> Subject:
        return Subject(gateway.url, pods[0].model, BLOCK_TOKENS, CONTEXT_TOKENS)


class TestStreams(ThroughTheGateway, StreamsContract):
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
    async def test_the_head_comes_before_the_first_token(self, subject: Subject, path: str) -> None:
        """It does not: the head is held until the first token, so that until then another pod can still answer."""
        answer = await subject.stream(path, subject.prompt(LONG))
        assert not answer.head_came_alone

    @pytest.mark.parametrize("path", APIS)
    async def test_a_stream_is_chunked_events(self, subject: Subject, path: str) -> None:
        """Chunks are cut between events, but several that came at once may share one."""
        answer = await subject.stream(path, tokens=5, stream_options=ASK_USAGE if path in OPENAI[:2] else None)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert "content-length" not in answer.headers
        for chunk in answer.chunks:
            assert chunk.startswith(b"data: " if path in OPENAI[:2] else b"event: ")
            assert chunk.endswith(b"\n\n")
        assert len(answer.chunks) <= len(answer.events())

    async def test_the_last_event_has_the_fingerprint(self, subject: Subject) -> None:
        """Only for who asks for usage: else the event that is withheld takes it along."""
        *_, last, _ = (await subject.stream(CHAT)).values()
        assert "system_fingerprint" not in last
        *_, last, _ = (await subject.stream(CHAT, stream_options=ASK_USAGE)).values()
        assert "system_fingerprint" in last


class TestAnswers(ThroughTheGateway, AnswersContract):
    async def test_a_salt_separates(self, subject: Subject) -> None:
        """Not one that a client sends: who may share whose cache is for the operator to say."""
        prompt = subject.prompt(LONG)
        await subject.ask(CHAT, prompt)
        answer = await subject.ask(CHAT, prompt, cache_salt="other")
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > LONG // 2

    async def test_apis_share_what_is_warm(self, subject: Subject) -> None:
        """Not knowingly: prompts are compared within one API, as no conversation changes it half way."""
        prompt = subject.prompt(LONG)
        for path in (CHAT, RESPONSES, MESSAGES):
            await subject.ask(path, prompt)
            tokens, warm = prompt_and_cached(path, await subject.ask(path, prompt))
            assert warm == unary_blocks(tokens - 1, subject.block_tokens)

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
    async def test_without_a_model_its_own_answers(self, subject: Subject, path: str) -> None:
        """A gateway serves many, so it must be told which."""
        requested = subject.request(path)
        del requested["model"]
        answer = await subject.post(path, requested)
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "model"

    async def test_the_last_of_equal_fields_counts(self, subject: Subject) -> None:
        """Parsers differ in which of two counts, so a body with a field twice is rejected, naming it."""
        spelled = b'{"model": "nobody", "max_tokens": 1, "prompt": "Hello", "max_tokens": 4, "model": "%s"}'
        answer = await subject.post(COMPLETIONS, spelled % subject.model.encode())
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "max_tokens"


class TestSurface(ThroughTheGateway, SurfaceContract):
    async def test_version_is_reported(self, subject: Subject) -> None:
        """Which of its pods' versions would it be?"""
        assert (await subject.get("/version")).status == 404

    async def test_models_are_listed_with_their_longest_prompt(self, subject: Subject) -> None:
        """All models of all pods, with what a client can use of a card."""
        listed = (await subject.get("/v1/models")).json()
        assert list(listed) == ["object", "data"]
        card = listed["data"][0]
        assert list(card) == ["id", "object", "created", "owned_by", "root", "parent", "max_model_len"]
        assert (card["id"], card["object"], card["parent"]) == (subject.model, "model", None)
        assert card["max_model_len"] == subject.context_tokens

    async def test_an_unknown_path_is_not_found(self, subject: Subject) -> None:
        """Told in the shape of the API, so that its clients understand."""
        for answer in (await subject.get("/v1/nothing"), await subject.post("/v1/nothing", {})):
            assert answer.status == 404
            assert answer.json()["error"]["code"] == "unknown_url"

    async def test_a_wrong_method_is_rejected(self, subject: Subject) -> None:
        """As above; which methods there are stands in a header here too."""
        answer = await subject.get(CHAT)
        assert answer.status == 405
        assert answer.headers["allow"] == "POST"
        assert answer.json()["error"]["code"] == "method_not_supported"

    async def test_the_callers_request_id_names_the_answer(self, subject: Subject) -> None:
        """The engine's id is ours, since two clients may choose alike; the caller's own comes back in its header."""
        for path, prefix in ((CHAT, "chatcmpl-"), (COMPLETIONS, "cmpl-"), (MESSAGES, "chatcmpl-")):
            answer = await subject.post(path, subject.request(path), {"X-Request-Id": "theirs-1"})
            assert answer.headers["x-request-id"] == "theirs-1"
            assert answer.json()["id"] == prefix + answer.headers["x-hearth-request-id"]

    async def test_an_engine_that_is_not_there_is_rejected(self, subject: Subject) -> None:
        """Which engine serves is not the client's to say: the header never reaches a pod."""
        for path in (CHAT, COMPLETIONS, MESSAGES):
            answer = await subject.post(path, subject.request(path), {"X-data-parallel-rank": "3"})
            assert answer.status == 200


class TestRefusals(ThroughTheGateway, RefusalsContract):
    def assert_refused(self, path: str, answer: Exchange, status: int, kind: str, param: str | None = None) -> None:
        """One shape an API, whoever noticed the fault: OpenAI's with a text for a code, or Anthropic's with the id."""
        assert answer.status == status
        assert answer.headers["content-type"] == "application/json"
        reported = answer.json()
        error = reported["error"]
        assert error["message"]
        if path == MESSAGES:
            assert list(reported) == ["type", "error", "request_id"]
            assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
            return
        assert list(error) == ["message", "type", "param", "code"]
        assert error["type"] == "invalid_request_error"
        assert isinstance(error["code"], str)
        if param is not None and param.removeprefix("body.").isidentifier() and param != "body":
            assert error["param"] == param.removeprefix("body."), "the same field is to blame"

    @pytest.mark.parametrize("path", APIS)
    @pytest.mark.parametrize("body", [b'{"model": "\xff\xfe"}', b"[" * 100_000 + b"]" * 100_000])
    async def test_what_cannot_be_parsed_at_all(self, subject: Subject, path: str, body: bytes) -> None:
        """Told like any other fault, and never sent to a pod."""
        self.assert_refused(path, await subject.post(path, body), 400, "")

    @pytest.mark.parametrize("path", APIS)
    async def test_another_content_type(self, subject: Subject, path: str) -> None:
        """There is a status for this."""
        answer = await subject.post(path, subject.request(path), {"Content-Type": "text/plain"})
        self.assert_refused(path, answer, 415, "")

    @pytest.mark.parametrize("fault", [one for one in CHAT_FAULTS if one.field not in NOT_THE_CLIENTS], ids=str)
    async def test_a_wrong_field_of_chat(self, subject: Subject, fault: Fault) -> None:
        """The same field is to blame."""
        answer = await subject.post(CHAT, subject.request(CHAT) | {fault.field: fault.value})
        self.assert_refused(CHAT, answer, 400, fault.kind, fault.param)

    @pytest.mark.parametrize("fault", [one for one in CHAT_FAULTS if one.field in NOT_THE_CLIENTS], ids=str)
    async def test_a_field_that_is_not_the_clients(self, subject: Subject, fault: Fault) -> None:
        """Stripped, so nothing is wrong with it."""
        answer = await subject.post(CHAT, subject.request(CHAT) | {fault.field: fault.value})
        assert answer.status == 200

    @pytest.mark.parametrize("body", [b'{"stream": "yes", ', b'{"stream": 1, ', b'{"stream": "on", '])
    async def test_what_reads_as_true_streams(self, subject: Subject, body: Body) -> None:
        """Only true is true: who guessed otherwise than the pod would relay a stream as a whole answer."""
        assert isinstance(body, bytes)
        requested: Any = body + b'"model": "%s", "prompt": "Hello", "max_tokens": 1}' % subject.model.encode()
        self.assert_refused(COMPLETIONS, await subject.post(COMPLETIONS, requested), 400, "", "stream")
