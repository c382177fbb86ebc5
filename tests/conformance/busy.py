"""A pod that takes only so many requests at once (--max-num-queued-reqs): busy is not broken, and says so.

A stream may be refused twice over: before its head, by status, or, as vLLM sends the head of a stream before the engine
has seen the request, after it. So a 200 is a promise only once the first event has come.
"""

import asyncio

import pytest

from tests.conformance.subject import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Subject
from tests.conformance.wire import Exchange

CROWD = 24
"""More than the pod takes, running and waiting."""

WORDS = "The engine is currently busy and cannot accept new requests."


async def crowd(subject: Subject, path: str, *, stream: bool) -> list[Exchange]:
    requested = [subject.request(path, tokens=64, stream=stream) for _ in range(CROWD)]
    return await asyncio.gather(*(subject.post(path, body) for body in requested))


def assert_busy(path: str, answer: Exchange) -> None:
    """A 503 in the shape of the API."""
    assert "retry-after" not in answer.headers
    error = answer.json()["error"]
    assert list(error) == (["type", "message"] if path == MESSAGES else ["message", "type", "param", "code"])
    assert error["type"] == "Service Unavailable"
    assert error["message"].startswith(WORDS)


def is_late_refusal(path: str, answer: Exchange) -> bool:
    """A 200 that takes itself back before the first token."""
    events = answer.events()
    match path:
        case "/v1/responses":
            return not answer.is_whole and [event.name for event in events] == [
                "response.created",
                "response.in_progress",
            ]
        case "/v1/messages":
            # What the API makes of the engine's refusal here is a fault of its own, so its words mean nothing.
            return answer.is_whole and [event.name for event in events] == ["error"]
        case _:
            first, *rest = answer.values()
            return "error" in first and first["error"]["code"] == 503 and rest == [None] and answer.is_whole


def is_served(path: str, answer: Exchange) -> bool:
    return (
        answer.is_whole
        and {
            CHAT: b'"finish_reason":"',
            COMPLETIONS: b'"finish_reason":"',
            RESPONSES: b"event: response.completed",
            MESSAGES: b"event: message_stop",
        }[path]
        in answer.body
    )


class BusyContract:
    """Tried on a pod by a test class of its own that inherits it."""

    @pytest.mark.parametrize("path", APIS)
    async def test_too_many_at_once_are_sent_away(self, subject: Subject, path: str) -> None:
        """Who is refused gets a 503; who is taken is served."""
        answers = await crowd(subject, path, stream=False)
        assert {answer.status for answer in answers} == {200, 503}
        for answer in answers:
            if answer.status == 503:
                assert_busy(path, answer)

    @pytest.mark.parametrize("path", APIS)
    async def test_too_many_streams_at_once_are_sent_away(self, subject: Subject, path: str) -> None:
        """Each is served, refused by status, or refused before its first token: nothing between."""
        taken = 0
        for answer in await crowd(subject, path, stream=True):
            if answer.status == 503:
                assert_busy(path, answer)
            elif is_served(path, answer):
                taken += 1
            else:
                assert is_late_refusal(path, answer), answer
        assert 0 < taken < CROWD

    async def test_a_busy_pod_is_well(self, subject: Subject) -> None:
        """Nothing that was refused makes it unhealthy, and the next request is served."""
        await crowd(subject, CHAT, stream=False)
        assert (await subject.get("/health")).status == 200
        await subject.ask(CHAT)
