"""Every field that the installed vLLM takes is classified: an upgrade that brings another fails here."""

import json
import os
import subprocess

import pytest

from routing.reading.fields import STREAM_OPTIONS, handling_of
from routing.request import Api
from tests.sources import ROOT

LISTING = """
import json, typing
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
from pydantic import BaseModel

def models(kind):
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    origin = typing.get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        return [origin]
    return [model for inner in typing.get_args(kind) for model in models(inner)]

def fields(*kinds):
    found = {}
    for kind in kinds:
        inside = models(kind)
        assert inside, kind
        for model in inside:
            for name, field in model.model_fields.items():
                found[name] = None
                for other in (field.alias, field.validation_alias):
                    if isinstance(other, str):
                        found[other] = None
    return sorted(found)

options = models(ChatCompletionRequest.model_fields["stream_options"].annotation)
print("FIELDS " + json.dumps({
    "chat": fields(ChatCompletionRequest), "completions": fields(CompletionRequest),
    "responses": fields(ResponsesRequest), "messages": fields(AnthropicMessagesRequest),
    "embeddings": fields(EmbeddingRequest), "pooling": fields(PoolingRequest),
    "classify": fields(ClassificationRequest), "score": fields(ScoreRequest), "rerank": fields(RerankRequest),
    "tokenize": fields(TokenizeRequest, AnthropicCountTokensRequest), "detokenize": fields(DetokenizeRequest),
    "stream_options": fields(*options),
}))
"""


@pytest.fixture(scope="module")
def listed() -> dict[str, list[str]]:
    """The fields of vLLM's request models, as its own environment has them."""
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    python = ROOT / ".venv-vllm" / "bin" / "python"
    reported = subprocess.run([python, "-c", LISTING], env=environment, capture_output=True, text=True, check=False)
    found = [line for line in reported.stdout.splitlines() if line.startswith("FIELDS ")]
    assert found, reported.stderr
    fields: dict[str, list[str]] = json.loads(found[0].removeprefix("FIELDS "))
    return fields


@pytest.mark.parametrize("api", Api)
def test_every_field_is_classified(listed: dict[str, list[str]], api: Api) -> None:
    """Passed, clamped, rejected or ours: see `routing/reading/fields.py`."""
    assert len(listed[api]) >= 2
    assert [field for field in listed[api] if handling_of(api, field) is None] == []


def test_every_stream_option_is_classified(listed: dict[str, list[str]]) -> None:
    """They say what events there are, and limits count events."""
    assert set(listed["stream_options"]) <= set(STREAM_OPTIONS)
