"""The facts of a request."""

import pytest

from routing.request import DEFAULT_OUTPUT_TOKENS, Api, Request


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        (Request("r", Api.CHAT, "m"), DEFAULT_OUTPUT_TOKENS),
        (Request("r", Api.CHAT, "m", max_tokens=5), 5),
        (Request("r", Api.CHAT, "m", max_tokens=0), 0),
        (Request("r", Api.CHAT, "m", max_tokens=10**6), DEFAULT_OUTPUT_TOKENS),
        (Request("r", Api.CHAT, "m", max_tokens=5, sequences=4), 20),
        (Request("r", Api.COMPLETIONS, "m", sequences=2), 2 * DEFAULT_OUTPUT_TOKENS),
        (Request("r", Api.EMBEDDINGS, "m", sequences=2), 0),
        (Request("r", Api.TOKENIZE, "m"), 0),
    ],
)
def test_the_answer_is_taken_to_be_of_average_length(request_: Request, tokens: int) -> None:
    """Unless its limit is lower; nobody reserves what a client allows but hardly ever gets."""
    assert request_.expected_output_tokens == tokens


def test_which_apis_generate() -> None:
    """Those that decode token by token."""
    assert [api.value for api in Api if api.generates] == ["chat", "completions", "responses", "messages"]
    assert [api.value for api in Api if api.is_anthropic] == ["messages"]
