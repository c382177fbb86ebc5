"""What becomes of each field of the requests that vLLM takes: one table, held against its own models by a test.

A field that is in no list is passed on unchanged. So a field of a new engine that lets a client bypass
limits, priorities or tenant isolation would go unnoticed: `tests/vllm/test_fields.py` fails until it is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from routing.reading.bodies import BODIES
from routing.reading.rewriting import RESERVED_FIELDS
from routing.request import Api


class FieldHandling(StrEnum):
    """What the gateway does with a field."""

    PASSED = "passed"
    """It goes on as the client sent it. Where it costs tokens they are counted: `n`, `min_tokens`, what shapes the
    prompt."""
    CLAMPED = "clamped"
    """It is lowered to what the tenant and its limits allow."""
    REJECTED = "rejected"
    """A request with it is rejected if a policy is configured."""
    OURS = "ours"
    """What a client sends is taken out or replaced: the gateway sets it, or it is absent."""


GATEWAY_FIELDS = frozenset((*RESERVED_FIELDS, "model", "stream_options"))
"""`model` where the policy has an alias for it, `stream_options` where usage has to be requested."""

REJECTED = frozenset(("background",))

SAMPLING = frozenset(
    (
        *("add_special_tokens", "allowed_token_ids", "bad_words", "echo", "frequency_penalty", "ignore_eos"),
        *("include_stop_str_in_output", "length_penalty", "logit_bias", "logprob_token_ids", "logprobs", "min_p"),
        *("min_tokens", "mm_payload", "n", "presence_penalty", "prompt_logprobs", "repetition_detection"),
        *("repetition_penalty", "response_format", "return_mm_kwargs", "return_token_ids", "return_token_offsets"),
        *("return_tokens_as_token_ids", "routed_experts_prompt_start", "seed", "session_id", "skip_special_tokens"),
        *("spaces_between_special_tokens", "stop", "stop_token_ids", "stream", "structured_outputs", "temperature"),
        *("thinking_token_budget", "top_k", "top_p", "truncate_prompt_tokens", "truncation_side", "use_beam_search"),
        *("user", "watermarking"),
    )
)
"""What chat and plain completions share."""

PASSED: Mapping[Api, frozenset[str]] = {
    Api.CHAT: SAMPLING
    | frozenset(
        (
            *("add_generation_prompt", "chat_template", "chat_template_kwargs", "continue_final_message", "documents"),
            *("include_reasoning", "media_io_kwargs", "messages", "mm_processor_kwargs", "parallel_tool_calls"),
            *("reasoning_effort", "return_prompt_text", "tool_choice", "tools", "top_logprobs"),
        )
    ),
    Api.COMPLETIONS: SAMPLING | frozenset((*("prompt", "prompt_embeds", "suffix"),)),
    Api.RESPONSES: frozenset(
        (
            *("chat_template_kwargs", "enable_response_messages", "frequency_penalty", "ignore_eos", "include"),
            *(
                "include_reasoning",
                "include_stop_str_in_output",
                "input",
                "instructions",
                "logit_bias",
                "max_tool_calls",
            ),
            *("media_io_kwargs", "metadata", "min_p", "mm_payload", "mm_processor_kwargs", "parallel_tool_calls"),
            *("presence_penalty", "previous_input_messages", "previous_response_id", "prompt", "prompt_cache_key"),
            *("reasoning", "repetition_penalty", "return_mm_kwargs", "seed", "service_tier", "session_id"),
            *("skip_special_tokens", "stop", "stop_token_ids", "store", "stream", "structured_outputs", "temperature"),
            *("text", "tool_choice", "tools", "top_k", "top_logprobs", "top_p", "truncation", "user", "watermarking"),
        )
    ),
    Api.MESSAGES: frozenset(
        (
            *("chat_template_kwargs", "messages", "metadata", "mm_payload", "output_config", "return_mm_kwargs"),
            *(
                "stop_sequences",
                "stream",
                "system",
                "temperature",
                "thinking",
                "tool_choice",
                "tools",
                "top_k",
                "top_p",
            ),
            *("watermarking",),
        )
    ),
    Api.EMBEDDINGS: frozenset(
        (
            *("add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs"),
            *("continue_final_message", "dimensions", "embed_dtype", "encoding_format", "endianness", "input"),
            *("media_io_kwargs", "messages", "mm_processor_kwargs", "padding", "truncate_prompt_tokens"),
            *("truncation_side", "use_activation", "user"),
        )
    ),
    Api.POOLING: frozenset(
        (
            *("add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs"),
            *("continue_final_message", "data", "dimensions", "embed_dtype", "encoding_format", "endianness", "input"),
            *("media_io_kwargs", "messages", "mm_processor_kwargs", "padding", "task", "truncate_prompt_tokens"),
            *("truncation_side", "use_activation", "user"),
        )
    ),
    Api.CLASSIFY: frozenset(
        (
            *("add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs"),
            *("continue_final_message", "input", "media_io_kwargs", "messages", "mm_processor_kwargs", "padding"),
            *("truncate_prompt_tokens", "truncation_side", "use_activation", "user"),
        )
    ),
    Api.SCORE: frozenset(
        (
            *("chat_template_kwargs", "data_1", "data_2", "documents", "instruction", "items", "max_tokens_per_doc"),
            *(
                "max_tokens_per_query",
                "mm_processor_kwargs",
                "padding",
                "queries",
                "query",
                "text_1",
                "text_2",
                "top_n",
            ),
            *("truncate_prompt_tokens", "truncation_side", "use_activation", "user"),
        )
    ),
    Api.RERANK: frozenset(
        (
            *("chat_template_kwargs", "data_1", "data_2", "documents", "instruction", "items", "max_tokens_per_doc"),
            *(
                "max_tokens_per_query",
                "mm_processor_kwargs",
                "padding",
                "queries",
                "query",
                "text_1",
                "text_2",
                "top_n",
            ),
            *("truncate_prompt_tokens", "truncation_side", "use_activation", "user"),
        )
    ),
    Api.TOKENIZE: frozenset(
        (
            *("add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs"),
            *(
                "continue_final_message",
                "media_io_kwargs",
                "messages",
                "mm_processor_kwargs",
                "output_config",
                "prompt",
            ),
            *("return_token_strs", "system", "thinking", "tokens", "tool_choice", "tools"),
        )
    ),
    Api.DETOKENIZE: frozenset(("tokens",)),
}
"""By API, as vLLM 0.32 has them."""

STREAM_OPTIONS: Mapping[str, FieldHandling] = {
    "include_usage": FieldHandling.OURS,
    "continuous_usage_stats": FieldHandling.PASSED,
}
"""The fields inside `stream_options`."""


def handling_of(api: Api, field: str) -> FieldHandling | None:
    """Return what becomes of a field of this API's requests, None where the field is not known."""
    if field in BODIES[api].LIMITED_BY:
        return FieldHandling.CLAMPED
    if field in REJECTED:
        return FieldHandling.REJECTED
    if field in GATEWAY_FIELDS:
        return FieldHandling.OURS
    return FieldHandling.PASSED if field in PASSED[api] else None
