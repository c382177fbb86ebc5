"""Which requests a grammar may restrict: those with tools or a schema, in each API's fields."""

import json
from typing import Any

import pytest

from routing.reading.requests import read_request
from routing.request import Api

MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("api", "fields", "is_constrained"),
    [
        (Api.CHAT, {}, False),
        (Api.CHAT, {"tools": [{"type": "function"}]}, True),
        (Api.CHAT, {"tools": []}, False),
        (Api.CHAT, {"response_format": {"type": "text"}}, False),
        (Api.CHAT, {"response_format": None}, False),
        (Api.CHAT, {"response_format": {"type": "json_object"}}, True),
        (Api.COMPLETIONS, {"prompt": "x", "structured_outputs": {"json": {}}}, True),
        (Api.COMPLETIONS, {"prompt": "x"}, False),
        (Api.RESPONSES, {"input": "x", "text": {"format": {"type": "json_schema"}}}, True),
        (Api.RESPONSES, {"input": "x", "text": {"verbosity": "low"}}, False),
        (Api.RESPONSES, {"input": "x", "text": {"format": {"type": "text"}}}, False),
        (Api.MESSAGES, {"max_tokens": 1, "tools": [{"name": "f"}]}, True),
        (Api.EMBEDDINGS, {"input": "x"}, False),
    ],
)
def test_tools_and_schemas_restrict_an_answer(api: Api, fields: dict[str, Any], *, is_constrained: bool) -> None:
    """A format that is plain text, and an empty list, do not."""
    messages = {"messages": MESSAGES} if api in (Api.CHAT, Api.MESSAGES) else {}
    body = json.dumps({"model": "m", **messages, **fields}).encode()
    assert read_request(api, body, request_id="x").request.is_constrained is is_constrained
