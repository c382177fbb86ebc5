"""A recording keeps sizes and numbered prefixes, and learns answers from the prompts that repeat them."""

import json
import pickle
from typing import Any

import pytest

from routing.request import Api
from simulator.shadowing.readings import Seen
from simulator.shadowing.recording import STRETCH_BYTES, Recording
from simulator.traces import Trace

SECRET = "the recipe of the house"


def chat(*texts: str, system: str = "", limit: int | None = None, **fields: Any) -> bytes:
    """A chat of a user and an assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    body: dict[str, Any] = {"model": "m", "messages": messages, **fields}
    return json.dumps(body if limit is None else body | {"max_tokens": limit}).encode()


def recorded(*bodies: bytes, api: Api = Api.CHAT, **options: int) -> Recording:
    recording = Recording(**options)
    for number, body in enumerate(bodies):
        recording.add(api, body, None, float(number))
    return recording


def shared_blocks(trace: Trace, one: int, other: int) -> int:
    """Leading blocks that two requests of a trace share."""
    pairs = zip(trace.arrivals[one].blocks, trace.arrivals[other].blocks, strict=False)
    return next((place for place, (left, right) in enumerate(pairs) if left != right), 0)


def test_no_prompt_is_kept() -> None:
    """Neither in rows nor beside them, and the hashes of two recordings have different seeds."""
    first, second = recorded(chat(SECRET * 9)), recorded(chat(SECRET * 9))
    assert len(first.rows[0].prefix) > 0
    assert SECRET.encode() not in pickle.dumps(dict(vars(first)))
    assert vars(first)["_numbers"].keys() != vars(second)["_numbers"].keys()


def test_what_cannot_be_read_is_counted() -> None:
    """A body that is no request of an API does not end the recording."""
    recording = recorded(b"{", b'{"messages": []}')
    assert (len(recording.rows), recording.skipped) == (0, 2)


def test_equal_beginnings_are_equal_blocks() -> None:
    """Two prompts share as many blocks of tokens as their bytes say, within one."""
    system = "Be brief. " * 64
    trace = recorded(chat("one" * 200, system=system), chat("two" * 200, system=system)).trace(Seen(), 16)
    assert trace.block_tokens == 16
    assert abs(shared_blocks(trace, 0, 1) - len(system) / 4 / 16) <= 1


def test_an_answer_is_learned_from_the_next_turn() -> None:
    """Its length in tokens, and that an engine that made it has it for the next turn."""
    answer = "Because of the tides. " * 40
    first, second = "Why? " * 100, "And then? " * 60
    recording = recorded(chat(first, limit=900), chat(first, answer, second, limit=900))
    assert recording.rows[0].answer_size == len(answer)
    assert (recording.rows[1].answer_size, recording.rows[1].next_row) == (None, None)
    trace = recording.trace(Seen(), 16)
    known, later = trace.arrivals
    assert known.output_tokens == pytest.approx(len(answer) / 4, abs=1)
    together = known.blocks
    assert len(together) == (known.prompt_tokens + known.output_tokens) // 16
    assert later.blocks[: len(together)] == together


def test_another_answer_than_the_one_given_is_not_shared() -> None:
    """A conversation that was changed before its last question goes on from no recorded prompt."""
    recording = recorded(chat("Why? " * 50), chat("How? " * 50, "So. " * 40, "And?"))
    assert recording.rows[0].answer_size is None


def test_an_answer_that_is_one_message_of_another_api_is_learned() -> None:
    """Anthropic's messages are written alike."""
    recording = recorded(
        chat("Why? " * 50, limit=9), chat("Why? " * 50, "So. " * 10, "And?", limit=9), api=Api.MESSAGES
    )
    assert recording.rows[0].answer_size == 40


def test_unknown_answers_add_up_to_what_pods_report() -> None:
    """Each has the same length, cut at its limit; the known one keeps its own."""
    recording = recorded(
        chat("Why? " * 50, limit=900),
        chat("Why? " * 50, "So. " * 20, "And?", limit=10),
        chat("Where? " * 50, limit=500),
        chat("When? " * 50),
    )
    prompt_tokens = sum(row.size for row in recording.rows) / 4
    trace = recording.trace(Seen(requests=4, prompt_tokens=prompt_tokens, output_tokens=330), 16)
    assert [one.output_tokens for one in trace.arrivals] == [20, 10, 150, 150]


def test_stretches_get_longer_when_there_are_too_many() -> None:
    """What was shared is still shared, also with prompts that come later."""
    system = "Be brief. " * 300
    recording = recorded(chat("one" * 900, system=system), chat("two" * 900, system=system), max_stretches=100)
    assert recording.stretch_bytes > STRETCH_BYTES
    assert len(vars(recording)["_numbers"]) <= 100
    recording.add(Api.CHAT, chat("six" * 900, system=system), None, 9.0)
    trace = recording.trace(Seen(), 16)
    blocks = len(system) / 4 / (trace.block_tokens or 1)
    for other in (1, 2):
        assert abs(shared_blocks(trace, 0, other) - blocks) <= 2


def test_the_model_with_most_requests_is_predicted() -> None:
    """Others ran on other engines."""
    recording = recorded(chat("a"), chat("b"), chat("c", model="other"))
    assert len(recording.trace(Seen()).arrivals) == 2
