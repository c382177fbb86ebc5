"""A body cut to a prefix has that prefix and nothing of what came behind it, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.reading import read_request
from routing.reading.shortening import shortened_body
from routing.request import Api

RULES = "You answer in verse, whatever is asked of you. " * 40
QUESTION = "Hidden words: what is the weather like? " * 20
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def blocks_of(api: Api, body: bytes) -> tuple[int, ...]:
    return read_request(api, body, request_id="r").request.prompt.blocks


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


BODIES: list[tuple[Api, dict[str, Any]]] = [
    (Api.CHAT, {"messages": [{"role": "system", "content": RULES}, user(QUESTION)]}),
    (Api.CHAT, {"messages": [user(RULES + QUESTION)], "tools": TOOLS, "temperature": 0}),
    (Api.CHAT, {"messages": [user([{"type": "text", "text": RULES + QUESTION}])]}),
    (
        Api.CHAT,
        {
            "messages": [
                user("Hi"),
                {"role": "assistant", "content": "Ho", "tool_calls": []},
                user(RULES),
                user(QUESTION),
            ]
        },
    ),
    (Api.COMPLETIONS, {"prompt": RULES + QUESTION}),
    (Api.MESSAGES, {"system": RULES[:90], "messages": [user(RULES), user(QUESTION)], "max_tokens": 9}),
    (Api.RESPONSES, {"input": RULES + QUESTION, "instructions": "Be kind."}),
    (Api.RESPONSES, {"input": [{"role": "user", "content": RULES}, {"role": "user", "content": QUESTION}]}),
]


@pytest.mark.parametrize(("api", "body"), BODIES)
def test_the_prefix_stays_and_the_rest_goes(api: Api, body: dict[str, Any]) -> None:
    """The blocks of the prefix are the same, so engines and index take it for the same."""
    raw = json.dumps({"model": "m", **body}).encode()
    prompt = read_request(api, raw, request_id="r").request.prompt
    size = len(RULES) - 40
    cut = shortened_body(api, raw, size)
    assert cut is not None
    short, shared = cut
    assert size * 0.9 <= shared <= size
    wanted = [block for block, end in zip(prompt.blocks, prompt.ends, strict=False) if end <= shared]
    assert list(blocks_of(api, short)[: len(wanted)]) == wanted
    assert len(wanted) > 10
    assert b"Hidden" not in short
    assert json.loads(short).get("tools") == body.get("tools")


def test_a_body_that_is_the_prefix_stays_as_it_is() -> None:
    """Not one byte differs."""
    raw = json.dumps({"model": "m", "messages": [user(RULES)]}).encode()
    assert shortened_body(Api.CHAT, raw, 1 << 20) == (raw, len(RULES) + len(b"\xffuser\xfe"))


def test_token_ids_are_cut_between_ids() -> None:
    """Four canonical bytes each behind their marker."""
    raw = json.dumps({"model": "m", "prompt": list(range(1_000))}).encode()
    cut = shortened_body(Api.COMPLETIONS, raw, 1 + 4 * 600)
    assert cut is not None
    assert json.loads(cut[0])["prompt"] == list(range(600))


def test_characters_of_several_bytes_are_not_torn() -> None:
    """The one that does not fit is left out."""
    raw = json.dumps({"model": "m", "messages": [user("é" * 500)]}).encode()
    for size in (300, 301):
        cut = shortened_body(Api.CHAT, raw, size)
        assert cut is not None
        assert set(json.loads(cut[0])["messages"][0]["content"]) == {"é"}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.COMPLETIONS, {"prompt": ["a" * 300, "b" * 300]}),
        (Api.CHAT, {"messages": [user([{"type": "image_url", "image_url": {"url": "data:" + "x" * 99}}])]}),
        (Api.EMBEDDINGS, {"input": "a" * 900}),
    ],
)
def test_what_cannot_be_cut_is_none(api: Api, body: dict[str, Any]) -> None:
    """Batches, images, and what makes no answer."""
    assert shortened_body(api, json.dumps({"model": "m", **body}).encode(), 200) is None
