"""A pair's prefill leg over HTTP: the pod's answer is read for what it hands over."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.pipeline.attempt import LegEnd, Prefilled
from gateway.relay.unary import ask_whole
from gateway.relay.upstream_pool import Pool
from routing.request import Usage


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """In the words of OpenAI's APIs, old and new, and of Anthropic's."""

    prompt_tokens: int | None = None
    input_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None
    input_tokens_details: _CachedTokens | None = None
    cache_read_input_tokens: int | None = None

    def usage(self) -> Usage | None:
        details = self.prompt_tokens_details or self.input_tokens_details
        cached = details.cached_tokens if details is not None else self.cache_read_input_tokens
        read = self.prompt_tokens if self.prompt_tokens is not None else self.input_tokens
        if read is None:
            return None
        # Anthropic's input tokens are those that were not read from a cache.
        tokens = read if details is not None or self.prompt_tokens is not None else read + (cached or 0)
        return Usage(tokens, 1, cached)


class _Told(msgspec.Struct):
    usage: _Usage | None = None
    kv_transfer_params: Any = None


_DECODER = msgspec.json.Decoder(_Told)


async def ask_prefill(pool: Pool, url: str, question: list[bytes], by_s: float) -> Prefilled:
    """Ask a pod for a prefill, and read what it hands over. Raises only `asyncio.CancelledError`."""
    whole = await ask_whole(pool, url, question, by_s)
    if not whole.is_answer:
        return Prefilled(whole.end, whole.status, detail=whole.detail)
    try:
        told = _DECODER.decode(whole.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Prefilled(LegEnd.MALFORMED, whole.status, detail="The pod's answer to a prefill is not JSON.")
    usage = told.usage.usage() if told.usage is not None else None
    return Prefilled(LegEnd.ANSWERED, whole.status, told.kv_transfer_params, usage)
