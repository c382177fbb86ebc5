"""The prefill leg's body: the same prompt, one token, nothing that shapes an answer."""

import json
from typing import Any

import pytest

from routing.reading.prefilling import prefill_body
from routing.request import Api

PROMPT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "caf\u00e9"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "cache_salt": "tenant",
    "chat_template_kwargs": {"enable_thinking": False},
}
ANSWER: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 1,
    "logprobs": True,
    "top_logprobs": 3,
    "stop": ["x"],
    "min_tokens": 9,
    "max_tokens": 50,
    "max_completion_tokens": 60,
    "response_format": {"type": "json_object"},
}


def sent(api: Api, body: dict[str, Any], fields: bytes = b"", **words: bool) -> dict[str, Any]:
    """The body as an engine reads it."""
    read: dict[str, Any] = json.loads(prefill_body(api, json.dumps(body).encode(), fields, **words))
    return read


def test_the_prompt_stays_as_it_is_and_the_answer_is_one_token() -> None:
    """Tools, template and salt shape the prompt; all else goes."""
    assert sent(Api.CHAT, PROMPT | ANSWER, b'{"do_remote_decode":true}') == PROMPT | {
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True},
    }


@pytest.mark.parametrize(
    ("api", "limit"),
    [(Api.COMPLETIONS, "max_tokens"), (Api.RESPONSES, "max_output_tokens"), (Api.MESSAGES, "max_tokens")],
)
def test_each_api_has_its_word_for_one_token(api: Api, limit: str) -> None:
    """And only that."""
    body = sent(api, {"model": "m", "max_tokens": 7, "max_output_tokens": 7, "max_completion_tokens": 7})
    assert {name: value for name, value in body.items() if name.startswith("max_")} == {limit: 1}
    assert body.get("store") is (False if api is Api.RESPONSES else None)


def test_a_first_token_that_would_stop_need_not_end_it() -> None:
    """Where the connector hands over nothing then."""
    assert sent(Api.CHAT, PROMPT, ends_by_length=True)["ignore_eos"] is True
    assert "ignore_eos" not in sent(Api.CHAT, PROMPT)


def test_what_a_client_says_of_transfers_goes() -> None:
    """Though it has been taken out before."""
    assert "kv_transfer_params" not in sent(Api.CHAT, PROMPT | {"kv_transfer_params": {"do_remote_prefill": True}})
