"""A chat that has thought, asked for by its tokens: what is asked first, what is made of it, what proves it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.pipeline.attempt import ResumeBlocker
from gateway.resume.continuation import Continuation
from gateway.resume.continuation_request import ContinuationRequest, build_request
from gateway.resume.delivered import DeliveredOutput, Event
from gateway.resume.splice import ReplayMismatch, splice_events
from gateway.resume.token_recovery import RecoveredTokens, TokenRecovery, read_recovered
from routing.request import Api
from tests.gateway.resume.teller import plain

MESSAGES = [{"role": "user", "content": "Tell."}]
CHAT: dict[str, Any] = {"model": "tiny", "stream": True, "messages": MESSAGES, "temperature": 0.7, "max_tokens": 10}

START, END = 90, 91
"""The tokens of the marks; every letter is a token of its own."""

MARKS = {"<think>": START, "</think>": END}


def stated(thoughts: str = "hm", text: str = "", **more: Any) -> DeliveredOutput:
    reported: dict[str, Any] = {"has_reasoning": True, "tokens": len(thoughts) + len(text)} | more
    return DeliveredOutput(Api.CHAT, b"", ({"id": "first"},), 3, text, thoughts, **reported)


def requested(before: DeliveredOutput, **more: Any) -> ContinuationRequest | ResumeBlocker:
    return build_request(Api.CHAT, json.dumps(CHAT | more).encode(), before, 1)


def recall_of(before: DeliveredOutput, **more: Any) -> TokenRecovery:
    asking = requested(before, **more)
    assert isinstance(asking, ContinuationRequest), asking
    assert asking.recovery is not None
    return asking.recovery


def pieces(text: str) -> tuple[list[int], list[str]]:
    """What a tokenizer tells of such a text."""
    names: list[str] = []
    while text:
        names.append(next((mark for mark in MARKS if text.startswith(mark)), text[0]))
        text = text[len(names[-1]) :]
    return [MARKS[name] if name in MARKS else ord(name) for name in names], names


def recalled(recall: TokenRecovery, prompt: str) -> RecoveredTokens | None:
    tokens, names = pieces(json.loads(recall.tokenize)["prompt"])
    words = json.dumps({"count": len(tokens), "tokens": tokens, "token_strs": names}).encode()
    reported = {"prompt_token_ids": pieces(prompt)[0], "prompt_text": prompt}
    return read_recovered(recall, json.dumps(reported).encode(), words)


def test_the_pod_is_sent_the_prompt_and_the_output_to_tokenize() -> None:
    """By the very chat, for one token and for nobody; what shapes its prompt stays, what shapes its answer goes."""
    more = {"stream_options": {"include_usage": True}, "stop": ["END"], "chat_template_kwargs": {"x": 1}}
    recall = recall_of(stated("hm", "So"), **more, response_format={"type": "text"})
    prompt, words = json.loads(recall.prompt), json.loads(recall.tokenize)
    assert prompt == {
        **{name: CHAT[name] for name in ("model", "messages", "temperature")},
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "stream": False,
        "return_token_ids": True,
        "return_prompt_text": True,
        "chat_template_kwargs": {"x": 1},
        "response_format": {"type": "text"},
    }
    assert (words["model"], words["prompt"]) == ("tiny", "<think>hm</think>So")
    assert (words["add_special_tokens"], words["return_token_strs"]) == (False, True)


@pytest.mark.parametrize(
    ("prompt", "text", "own"),
    [
        ("You:<think>\n", "", "hm"),
        ("You:<think>\n", "So", "hm</think>So"),
        # The model opens its thoughts itself; what stands further ahead is somebody else's.
        ("You:", "", "<think>hm"),
        ("<think>\n I:", "So", "<think>hm</think>So"),
        # The template has closed them: what was thought began behind.
        ("You:<think>\n</think>\n", "", "<think>hm"),
    ],
)
def test_what_was_reported_stands_behind_the_prompt(prompt: str, text: str, own: str) -> None:
    """Marks included, as the model said them."""
    found = recalled(recall_of(stated("hm", text)), prompt)
    ids, _ = pieces(own)
    assert found == RecoveredTokens((*pieces(prompt)[0], *ids), len(ids), 2, END)


PROMPT = {"prompt_token_ids": [7], "prompt_text": "You:"}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"prompt_text": "You:"}, {"tokens": [START, END], "token_strs": ["<think>", "</think>"]}),
        (PROMPT, {"tokens": [START, 60, 61], "token_strs": ["<think>", "</", "think>"]}),
        (PROMPT, {"tokens": [60, END], "token_strs": ["<", "</think>"]}),
        (PROMPT, {"tokens": [START, END], "token_strs": None}),
        (PROMPT, {"tokens": []}),
        ({"prompt_token_ids": [7]}, {"tokens": [START, END], "token_strs": ["<think>", "</think>"]}),
        (PROMPT | {"prompt_token_ids": "seven"}, {"tokens": [START, END], "token_strs": ["<think>", "</think>"]}),
    ],
)
def test_a_pod_that_reports_no_ids_or_knows_other_marks_is_not_believed(prompt: Event, words: Event) -> None:
    """Then nobody knows what its model would read."""
    recall = recall_of(stated("hm", "So"))
    assert read_recovered(recall, json.dumps(prompt).encode(), json.dumps(words).encode()) is None


@pytest.mark.parametrize(
    ("before", "more", "bar"),
    [
        (stated("", has_call=False), {}, ResumeBlocker.REASONING),
        (stated(), {"include_reasoning": False}, ResumeBlocker.REASONING),
        (stated(), {"echo": True}, ResumeBlocker.ECHO),
        (stated(has_call=True), {}, ResumeBlocker.TOOL_CALL),
        (stated("hm", "So"), {"response_format": {"type": "json_object"}}, ResumeBlocker.STRUCTURED_OUTPUT),
        (stated(), {"add_generation_prompt": False}, ResumeBlocker.UNSUPPORTED_PROMPT),
        (
            stated(),
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            ResumeBlocker.UNSUPPORTED_PROMPT,
        ),
        (stated(), {"messages": "Tell."}, ResumeBlocker.UNSUPPORTED_PROMPT),
    ],
)
def test_what_is_unknown_in_ids_is_named(before: DeliveredOutput, more: Event, bar: ResumeBlocker) -> None:
    """Thoughts that were not told, prompts with more than text in them, and whatever bars a text as well."""
    assert requested(before, **more) is bar


def test_a_grammar_may_still_begin_behind_the_thoughts() -> None:
    """Nothing of it was said yet."""
    assert not recall_of(stated(), response_format={"type": "json_object"}).has_text


def test_what_is_the_same_again_is_requested_again() -> None:
    """That is proven text by text; ids are for what is drawn."""
    asking = requested(stated(), temperature=0)
    assert isinstance(asking, ContinuationRequest)
    assert asking.is_replay


IDS = RecoveredTokens((7, START, 104, 109, END, 83), 4, 2, END)
"""Four tokens are of the answer: `hm`, the end mark, `S`."""


def rest(text: str = "S", **more: Any) -> Continuation:
    before = stated("hm", text)
    asking = requested(before, **more)
    assert isinstance(asking, ContinuationRequest)
    return Continuation(before, asking).with_tokens(IDS)


def event(delta: Event, ids: list[int] | None = None, **more: Any) -> Event:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": ids}
    return {"id": "second", "choices": [choice], **more}


OPENING = event({"role": "assistant", "content": ""}, prompt_token_ids=[*IDS.ids])


def joined(asked_for: Continuation, *events: Event) -> list[Event]:
    """What a client is sent for these."""
    stitch = asked_for.splicer(withholds_usage=False)
    sent = splice_events(stitch, b"".join(map(plain, events)))
    assert sent is not None
    return [json.loads(line[6:]) for line in sent.decode().split("\n\n") if line]


def test_limits_are_what_is_left_of_them_by_tokens() -> None:
    """Not by events: one may have held several, and the mark was in none."""
    asking = rest().request
    body = json.loads(asking.body)
    assert (body["max_tokens"], body["return_token_ids"], asking.tokens_left) == (6, True, 6)
    assert asking.prompt_ids == IDS.ids


def test_the_rest_is_reported_without_what_proves_it() -> None:
    """No ids, and no event of a mark that has nothing but its id; under the id that the client knows."""
    reported = joined(rest(), OPENING, event({"content": "o"}, [111]), event({}, [2]))
    assert [each["choices"][0]["delta"] for each in reported] == [{"content": "o"}]
    assert reported[0]["id"] == "first"
    assert reported[0]["choices"][0]["token_ids"] is None


def test_requested_ids_are_returned() -> None:
    """As the pod told them."""
    reported = joined(rest(return_token_ids=True), OPENING, event({"content": "o"}, [111]))
    assert reported[0]["choices"][0]["token_ids"] == [111]


def test_usage_is_that_of_the_unary_answer() -> None:
    """What is known in tokens counts as these, the mark as well; thoughts count as thoughts."""
    usage = {"prompt_tokens": 6, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 1}}
    reported = joined(rest(""), OPENING, {"choices": [], "usage": usage})
    assert reported[0]["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 7,
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("S", [event({"role": "assistant", "content": ""}, prompt_token_ids=[7, START])]),
        ("S", [event({"content": "o"}, [111])]),
        # Thoughts that go on are taken for text, or a text that goes on for thoughts.
        ("", [OPENING, event({"content": "o"}, [111])]),
        ("S", [OPENING, event({"reasoning": "o"}, [111])]),
    ],
)
def test_a_pod_that_reads_something_else_is_ignored(text: str, events: list[Event]) -> None:
    """Another prompt than was asked, or none told; a parser that stands elsewhere than the answer does."""
    with pytest.raises(ReplayMismatch):
        joined(rest(text), *events)


def test_thoughts_end_where_their_mark_stands() -> None:
    """Also where both come in one event."""
    reported = joined(rest(""), OPENING, event({"reasoning": "m"}, [109]), event({"content": "S"}, [END, 83]))
    assert [each["choices"][0]["delta"] for each in reported] == [{"reasoning": "m"}, {"content": "S"}]
