"""/tokenize and /detokenize."""

from __future__ import annotations

from aiohttp import web

from simulator.prompts import tokens_of
from simulator.surface.chat_request import chat_prompt, offered_tool, opening_of
from simulator.surface.fields import read_body
from simulator.surface.request_options import known_model
from simulator.surface.wire import SERVICE, ApiError, json_answer, malformed
from simulator.tokens import MAX_ID, decode


async def tokenize(request: web.Request) -> web.StreamResponse:
    """POST /tokenize: a text or messages, however long."""
    service = request.app[SERVICE]
    body = await read_body(request)
    model = known_model(service, body)
    if body.get("messages") is not None:
        tools = [offered_tool(each) for each in body.objects("tools")]
        opening = opening_of(service.options, body)
        tokens = list(chat_prompt(service, model, body.objects("messages"), body, tools, opening).tokens)
    else:
        text = body.text("prompt")
        if text is None:
            raise malformed("prompt", "missing", "Field required")
        try:
            tokens = tokens_of(text)
        except UnicodeEncodeError:
            raise ApiError("TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence]]") from None
    return json_answer(
        {
            "count": len(tokens),
            "max_model_len": service.options.window_tokens,
            "tokens": tokens,
            "token_strs": [decode([token]) for token in tokens] if body.flag("return_token_strs") else None,
        }
    )


async def detokenize(request: web.Request) -> web.StreamResponse:
    """POST /detokenize."""
    body = await read_body(request)
    known_model(request.app[SERVICE], body)
    tokens = body.required("tokens")
    if not isinstance(tokens, list) or not all(type(each) is int and 0 <= each <= MAX_ID for each in tokens):
        raise malformed("tokens", "int_type", "Input should be a valid integer", tokens)
    return json_answer({"prompt": decode(tokens)})
