"""A body's own bound on its answers is lowered and never raised, and nothing else of it changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.reading.capping import capped
from routing.request import Api


@pytest.mark.parametrize(
    ("api", "said", "told"),
    [
        (Api.CHAT, {}, {"max_completion_tokens": 50}),
        (Api.CHAT, {"max_tokens": 40}, {"max_tokens": 40}),
        (Api.CHAT, {"max_tokens": 400}, {"max_tokens": 50}),
        (Api.CHAT, {"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": 50}),
        (
            Api.CHAT,
            {"max_tokens": 400, "max_completion_tokens": 20},
            {"max_tokens": 50, "max_completion_tokens": 20},
        ),
        (Api.COMPLETIONS, {}, {"max_tokens": 50}),
        (Api.RESPONSES, {"max_output_tokens": 51}, {"max_output_tokens": 50}),
        (Api.MESSAGES, {"max_tokens": 1_000}, {"max_tokens": 50}),
        (Api.EMBEDDINGS, {}, {}),
    ],
)
def test_no_answer_may_have_more(api: Api, said: dict[str, Any], told: dict[str, Any]) -> None:
    """In the words of each API, whichever of them the client used."""
    rest = {"model": "m", "input": "max_tokenss", "deep": {"x": [1, None]}}
    assert json.loads(capped(api, json.dumps(rest | said).encode(), 50)) == rest | told


def test_a_name_in_escapes_or_in_the_text_is_no_way_round() -> None:
    r"""`\u006dax_tokens` is `max_tokens`; a prompt that names the field is none."""
    escaped = b'{"model":"m","\\u006dax_tokens":900}'
    assert json.loads(capped(Api.COMPLETIONS, escaped, 50)) == {"model": "m", "max_tokens": 50}
    quoted = json.dumps({"model": "m", "prompt": 'say "max_tokens": 9', "max_tokens": 900}).encode()
    assert json.loads(capped(Api.COMPLETIONS, quoted, 50))["max_tokens"] == 50


def test_what_is_within_the_bound_is_the_same_bytes() -> None:
    """A body that allows no more is not written anew."""
    body = b'{ "model" : "m" , "max_tokens" : 50 }'
    assert capped(Api.COMPLETIONS, body, 50) is body
