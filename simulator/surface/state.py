"""What a pod says about itself: health, models, version, load, metrics."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from simulator.surface.usage import VERSION
from simulator.surface.wire import SERVICE, json_answer


async def health(request: web.Request) -> web.StreamResponse:
    """GET /health and /ping: an empty 200 or 503."""
    return web.Response(status=200 if request.app[SERVICE].is_healthy else 503)


async def models(request: web.Request) -> web.StreamResponse:
    """GET /v1/models: a card for each name of the base model, then one for each adapter."""
    options = request.app[SERVICE].options
    base = options.models[0]
    cards = [_card(name, base, None, options.window_tokens) for name in options.models]
    cards += [_card(name, path, base, None) for name, path in options.adapters.items()]
    return json_answer({"object": "list", "data": cards})


def _card(name: str, root: str, parent: str | None, max_model_len: int | None) -> dict[str, Any]:
    created = int(time.time())
    permission = {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }


async def version(_request: web.Request) -> web.StreamResponse:
    """GET /version."""
    return json_answer({"version": VERSION})


async def load(_request: web.Request) -> web.StreamResponse:
    """GET /load: always 0, as on a vLLM that was not configured to track it."""
    return json_answer({"server_load": 0})


async def metrics(request: web.Request) -> web.StreamResponse:
    """GET /metrics."""
    return web.Response(body=request.app[SERVICE].metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def event_sources(_request: web.Request) -> web.StreamResponse:
    """GET /kv_event_sources: this pod publishes no KV events."""
    return json_answer({})


async def reset_prefix_cache(request: web.Request) -> web.StreamResponse:
    """POST /reset_prefix_cache."""
    for rank in request.app[SERVICE].ranks:
        rank.engine.forget_prefixes()
    return json_answer({"success": True})
