"""Answers that are held back: kept ones reach the client as if nobody had asked, others never show a byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from cascade.calibration_file import AnswerVerdict
from cascade.judging import HoldbackSettings, JudgingTrigger
from cascade.logprobs import LogprobFilter
from gateway.pipeline.attempt import AttemptStatus
from routing.request import Api
from tests.gateway.cascades.fuzzed_holdback import HELD_LONG, play
from tests.gateway.cascades.logprob_streams import FixedJudge, chat_pair
from tests.gateway.http.scene import Scene, staged
from tests.gateway.http.wire import LAST_CHUNK, STREAM_HEAD, answer_bytes, chat_answer, chunk

STREAMS = 10_000


def test_no_byte_is_ever_retracted() -> None:
    """Over ten thousand streams: what was thrown away has shown nothing, what was kept is exactly the plain stream."""

    def run() -> None:
        assert [seed for seed in range(STREAMS) if not play(seed)] == []

    staged(run)


def test_an_aborted_model_is_reported_at_once() -> None:
    """With the read that fills the window its connection is closed; nothing more of it is read."""
    sure, _ = chat_pair([" a"] * 20)
    judge = FixedJudge(AnswerVerdict.ESCALATE, HoldbackSettings(4, HELD_LONG))

    def run() -> None:
        scene = Scene(judge=judge)
        scene.feed([STREAM_HEAD])
        for read, each in enumerate(sure):
            scene.feed([chunk(each)])
            assert scene.socket.is_aborted == (read >= 4)
        assert scene.leg.end is AttemptStatus.ESCALATED
        assert scene.leg.counted is not None
        assert scene.leg.counted.completion_tokens == 4
        assert not scene.leg.started

    staged(run)


@pytest.mark.parametrize("verdict", list(AnswerVerdict))
def test_time_closes_a_window(verdict: AnswerVerdict) -> None:
    """It is judged by what has come, at the end of its time and not before; the clock starts with the first token."""
    sure, plain = chat_pair([" a", " b", " c", " d"])
    judge = FixedJudge(verdict, HoldbackSettings(100, HELD_LONG), LogprobFilter(Api.CHAT))

    def run() -> None:
        scene = Scene(judge=judge)
        timers: list[tuple[float, Callable[[], None]]] = []

        def call_later(wait_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
            timers.append((wait_s, call))
            return asyncio.get_running_loop().call_later(wait_s, call)

        loop = SimpleNamespace(time=asyncio.get_running_loop().time, call_later=call_later)
        scene.relay.loop = cast("asyncio.AbstractEventLoop", loop)
        scene.feed([STREAM_HEAD, chunk(sure[0])])
        assert timers == []
        scene.feed([chunk(sure[1]), chunk(sure[2])])
        [(wait_s, ring)] = timers
        assert 0.8 * HELD_LONG < wait_s < HELD_LONG
        assert scene.client.written == b""
        ring()
        assert judge.requested == [JudgingTrigger.TIME]
        if verdict is AnswerVerdict.KEEP:
            scene.feed([*map(chunk, sure[3:]), LAST_CHUNK])
            assert scene.received.body == b"".join(plain)
        else:
            assert scene.client.written == b""
            assert scene.socket.is_aborted

    staged(run)


def test_reasoning_is_not_counted_as_answer() -> None:
    """The window is of answer tokens; where reasoning is streamed, it is judged by its own."""
    sure, _ = chat_pair([" a", " b"], ["hm"] * 6)

    def run() -> None:
        held = FixedJudge(AnswerVerdict.KEEP, HoldbackSettings(2, HELD_LONG))
        scene = Scene(judge=held)
        scene.feed([STREAM_HEAD, *map(chunk, sure[:7])])
        assert held.requested == []
        scene.feed([*map(chunk, sure[7:9])])
        assert held.requested == [JudgingTrigger.WINDOW]
        assert held.evidence is not None
        assert (len(held.evidence.reasoning), len(held.evidence.answer)) == (6, 2)
        streamed = FixedJudge(AnswerVerdict.KEEP, HoldbackSettings(2, HELD_LONG, streams_reasoning=True))
        Scene(judge=streamed).feed([STREAM_HEAD, *map(chunk, sure[:3])])
        assert streamed.requested == [JudgingTrigger.WINDOW]

    staged(run)


@pytest.mark.parametrize("read_bytes", [1, 7, 700, 1 << 20])
def test_a_released_stream_is_kept_as_its_client_got_it(read_bytes: int) -> None:
    """However it is cut into reads, log-probabilities behind the window are in neither; usage that was withheld is."""
    sure, plain = chat_pair([" a"] * 40)
    judge = FixedJudge(AnswerVerdict.KEEP, HoldbackSettings(1, HELD_LONG), LogprobFilter(Api.CHAT))

    def run() -> None:
        scene = Scene(judge=judge)
        head = [STREAM_HEAD, chunk(sure[0]), chunk(sure[1])]
        rest = b"".join(map(chunk, sure[2:])) + LAST_CHUNK
        scene.feed([*head, *(rest[at : at + read_bytes] for at in range(0, len(rest), read_bytes))])
        assert scene.received.body == b"".join(plain)
        assert scene.relay.recorder.joined() == b"".join([*sure[:2], *plain[2:-1], *sure[-2:]])
        assert scene.leg.usage is not None

    staged(run)


@pytest.mark.parametrize("verdict", list(AnswerVerdict))
def test_a_unary_answer_is_judged_completely(verdict: AnswerVerdict) -> None:
    """The client gets it with its new length and without what it did not ask for, or nothing of it."""
    answer = chat_answer("Paris.")
    sure = chat_answer("Paris.")
    sure["choices"][0]["logprobs"] = {"content": [{"token": "Paris", "logprob": -0.1, "top_logprobs": []}]}
    judge = FixedJudge(verdict, HoldbackSettings(), LogprobFilter(Api.CHAT))

    def run() -> None:
        scene = Scene(judge=judge)
        scene.feed([answer_bytes(sure)])
        assert judge.requested == [JudgingTrigger.ENDED]
        if verdict is AnswerVerdict.ESCALATE:
            assert scene.client.written == b""
            assert scene.leg.end is AttemptStatus.ESCALATED
            assert scene.leg.counted is not None
            assert scene.leg.counted.prompt_tokens == 42
        else:
            assert scene.received.is_whole
            assert scene.client.written.endswith(answer_bytes(answer).partition(b"\r\n\r\n")[2])
            assert scene.leg.usage is not None

    staged(run)
