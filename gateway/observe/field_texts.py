"""What each field of the request log and of the usage record holds, for docs/logs.md. No request reads it."""

from __future__ import annotations

from collections.abc import Mapping

FIELD_TEXTS: Mapping[str, str] = {
    "timestamp": "time at which the request ended, RFC 3339 in UTC",
    "level": "`error` for a 5xx, else `info`",
    "event": "`request_completed`",
    "message": "the same in words",
    "schema": "version of the usage record: 2",
    "request_id": "as in `x-request-id`, on the receipt and in the usage record",
    "trace_id": (
        "trace, in hex ([tracing.md](tracing.md)). Without `tracing` that of the caller's `traceparent`; "
        "null without one"
    ),
    "request_span_id": "the gateway's span of the request, in hex; null without `tracing`",
    "parent_span_id": "the caller's span, in hex; null where it sent none",
    "tenant": "null without a policy",
    "tier": "tier of the request",
    "key_id": "id of the API key; null without a policy",
    "user": "user of the key or token; null where it names none",
    "group": "group of the key or token; null where it names none",
    "api": "API of the request",
    "model": "the model that was sent upstream",
    "stream": "whether the response was a stream",
    "status": "of the response; 499 where the client left before its end",
    "reason": (
        "why the gateway rejected the request ([reasons.md](reasons.md)); null where it did not, also where the pod "
        "itself returned an error"
    ),
    "upstream": "base URL of the pod that was tried last; null where none was",
    "dp_rank": "data-parallel rank of the engine there; null where its pod is one engine",
    "role": "`prefill`, `decode` or `either`; null where none was tried",
    "attempts": "how many engines were tried",
    "duration_s": "from arrival to the end",
    "ttft_s": "from arrival to the first token; null without one",
    "queue_wait_s": "time in the admission queue",
    "slo_met": "whether the tier's objectives were met; null without any, or where the client is the reason",
    "input_tokens": "prompt tokens, as the engine reported them; null where it did not",
    "cached_input_tokens": "those of them that the engine had cached",
    "output_tokens": "tokens of the answer, as the engine reported them",
    "resumes": "how often the stream was resumed on another pod ([resume.md](resume.md))",
    "resume_failure": "why it was not",
    "wasted_tokens": "tokens computed twice for that",
    "client_request_id": (
        "the client's own `x-request-id`; null without a valid one (printable ASCII, at most 128 characters)"
    ),
    "path": "path of the endpoint",
    "requested_model": (
        "as the client named it: an alias, a cascade, the model before a downgrade; null where the body was not read"
    ),
    "cost": (
        "what is charged, by the prices in `model_list`: all models of a cascade together, discarded answers included; "
        "null without a price or without tokens"
    ),
    "providers": (
        "providers outside the fleet that the request was sent to, as `provider/region/model` "
        "([providers.md](providers.md))"
    ),
    "input_cost": "of the prompt, without discarded answers of a cascade; null without a price",
    "output_cost": "of the answer, likewise",
    "coalesced_with": "request id whose response was shared; nothing is charged then",
    "cascade": (
        "models that were called, with tokens and cost ([cascade.md](cascade.md)); null where the model is no cascade"
    ),
    "prompt_bytes": "size of the prompt",
    "max_tokens": "the most output tokens that the client allowed; null without a limit",
}
"""Times in seconds, sizes in bytes."""
