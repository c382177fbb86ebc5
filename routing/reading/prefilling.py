"""A client's body as the prefill engine of a pair is to see it: the same prompt, one token for nobody, no stream.

What shapes the prompt stays as it is: the KV is the decode engine's own only if both read the same tokens. What shapes
the answer goes: it costs, it may be refused together with one token, and the decode engine is told it anyway.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from routing.reading.rewriting import TOP_LEVEL
from routing.request import Api

DROPPED = frozenset(
    {
        *("stream_options", "n", "best_of", "use_beam_search", "logprobs", "top_logprobs", "prompt_logprobs", "echo"),
        *("stop", "stop_sequences", "stop_token_ids", "min_tokens", "logit_bias", "bad_words", "allowed_token_ids"),
        *("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        *("return_token_ids", "return_tokens_as_token_ids", "background", "max_tool_calls", "vllm_xargs"),
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "kv_transfer_params"),
    }
)

ONE = Raw(b"1")
NO, YES = Raw(b"false"), Raw(b"true")

LIMITS = {
    Api.CHAT: ("max_completion_tokens", "max_tokens"),
    Api.COMPLETIONS: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
}
"""Each API's words for how long an answer may be. Chat has an old one too, and old engines know only that."""



def prefill_body(api: Api, raw: bytes, fields: bytes = b"", *, ends_by_length: bool = False) -> bytes:
    """The prefill leg's body. `raw` was read as a request before; `fields` are its `kv_transfer_params`, as JSON.

    `ends_by_length`: a first token that would end the answer must not end this one.
    """
    kept = {name: value for name, value in TOP_LEVEL.decode(raw).items() if name not in DROPPED}
    kept["stream"] = NO
    kept |= dict.fromkeys(LIMITS[api], ONE)
    if api is Api.RESPONSES:
        kept["store"] = NO
    if ends_by_length and api is not Api.MESSAGES:
        kept["ignore_eos"] = YES
    if fields:
        kept["kv_transfer_params"] = Raw(fields)
    return msgspec.json.encode(kept)
