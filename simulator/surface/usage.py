"""What a generation cost, in the words of chat and completions."""

from __future__ import annotations

from typing import Any

from simulator.generation import Generation
from simulator.options import Options


def counts(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The three numbers, in vLLM's order."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def unary_usage(options: Options, generation: Generation, *, reports_created: bool) -> dict[str, Any]:
    """Return `usage` of a unary response; completions never report what they added to the cache."""
    details = None
    if options.reports_cached_tokens:
        details = {
            "cached_tokens": generation.cached_tokens,
            "created_cache_tokens": generation.created_cache_tokens if reports_created else None,
            "multimodal_tokens": None,
        }
    usage = counts(generation.prompt_tokens, generation.completion_tokens)
    return {**usage, "prompt_tokens_details": details, "completion_tokens_details": _thoughts(options, generation)}


def last_usage(options: Options, generation: Generation, *, reports_created: bool) -> dict[str, Any]:
    """`usage` of a stream's last chunk, which leaves out what is null."""
    usage = counts(generation.prompt_tokens, generation.completion_tokens)
    if options.reports_cached_tokens:
        details = {"cached_tokens": generation.cached_tokens}
        if reports_created:
            details["created_cache_tokens"] = generation.created_cache_tokens
        usage["prompt_tokens_details"] = details
    if reports_created and (thoughts := _thoughts(options, generation)):
        usage["completion_tokens_details"] = thoughts
    return usage


def _thoughts(options: Options, generation: Generation) -> dict[str, int] | None:
    """Reported by pods with reasoning, even if there was none this time."""
    return {"reasoning_tokens": generation.thought_tokens} if options.max_reasoning_tokens else None


def fingerprint(options: Options) -> str:
    """`system_fingerprint`: the engine's version and a hash of its configuration."""
    return f"vllm-{VERSION}-{sum(options.models[0].encode()) & 0xFFFFFFFF:08x}"


VERSION = "0.32.0"
"""The vLLM whose surface this is."""
