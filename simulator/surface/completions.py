"""/v1/completions: texts or token ids, one or many."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from simulator.generation import Choice, Generation, Portion
from simulator.options import Options
from simulator.prompts import Prompt, prompt_of_text, prompt_of_tokens
from simulator.surface.fields import Body, read_body
from simulator.surface.logprobs import MAX_LOGPROBS, completion_logprobs
from simulator.surface.request_options import RequestOptions, read_request_options
from simulator.surface.usage import counts, fingerprint, last_usage, unary_usage
from simulator.surface.wire import SERVICE, ApiError, compact, engine_issue, json_answer, malformed, open_stream
from simulator.tokens import MAX_ID

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Completion:
    """One completions request, checked."""

    options_of_request: RequestOptions
    prompts: list[Prompt]
    logprobs: int | None
    echoes: bool


async def complete_text(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions."""
    service = request.app[SERVICE]
    body = await read_body(request)
    options_of_request = read_request_options(service, request, body, DEFAULT_MAX_TOKENS)
    prompts = read_prompts(body, "prompt", service.seed(options_of_request.model))
    completion = Completion(options_of_request, prompts, _requested_logprobs(body), body.flag("echo"))
    with service.generate(options_of_request.order(service.options, prompts)) as generation:
        if options_of_request.stream:
            return await _stream(request, service.options, completion, generation)
        await generation.completed()
        if generation.has_failed:
            raise engine_issue()
        return json_answer(_unary_body(service.options, completion, generation))


def read_prompts(body: Body, name: str, seed: int) -> list[Prompt]:
    """A text, a list of texts, a list of token ids, or a list of such lists."""
    value = body.get(name)
    if value is None or value in ("", []):
        raise ApiError("Either prompt or prompt_embeds must be provided and non-empty.", param=name)
    items = value if isinstance(value, list) and not _are_ids(value) else [value]
    try:
        return [_prompt(item, name, seed) for item in items]
    except UnicodeEncodeError:
        raise ApiError(
            "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        ) from None


def _prompt(item: Any, name: str, seed: int) -> Prompt:
    if isinstance(item, str) and item:
        return prompt_of_text(item, seed)
    if isinstance(item, list) and item and _are_ids(item):
        return prompt_of_tokens(item, seed)
    raise malformed(name, "string_type", "Input should be a valid string", item)


def _are_ids(value: Any) -> bool:
    """Whether this is a prompt of token ids."""
    return isinstance(value, list) and all(type(each) is int and 0 <= each <= MAX_ID for each in value)


def _requested_logprobs(body: Body) -> int | None:
    count = body.integer("logprobs", None, low=0)
    if count is not None and count > MAX_LOGPROBS:
        raise ApiError(
            f"Requested sample logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}",
            param="logprobs",
        )
    return count


def _unary_body(options: Options, completion: Completion, generation: Generation) -> dict[str, Any]:
    return {
        "id": f"cmpl-{completion.options_of_request.request_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": completion.options_of_request.model,
        "choices": [_unary_choice(completion, choice) for choice in generation.choices],
        "service_tier": None,
        "system_fingerprint": fingerprint(options),
        "usage": unary_usage(options, generation, reports_created=False),
        "kv_transfer_params": generation.transfer_params,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _unary_choice(completion: Completion, choice: Choice) -> dict[str, Any]:
    reports_ids, tokens = completion.options_of_request.returns_token_ids, choice.script.tokens
    return {
        "index": choice.index,
        "text": _echo(completion, choice) + choice.text,
        "logprobs": _logprobs(completion, choice, 0, tokens),
        "finish_reason": choice.script.finish_reason,
        "stop_reason": choice.script.stop_reason,
        "token_ids": choice.script.token_ids(0, tokens) if reports_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": list(choice.prompt.tokens) if reports_ids else None,
        "routed_experts": None,
    }


def _echo(completion: Completion, choice: Choice) -> str:
    return choice.prompt.text if completion.echoes else ""


def _logprobs(completion: Completion, choice: Choice, start: int, end: int) -> dict[str, Any] | None:
    if completion.logprobs is None:
        return None
    offset = len(_echo(completion, choice)) + len(choice.script.text(0, start))
    return completion_logprobs(choice.script, start, end, completion.logprobs, offset)


async def _stream(
    request: web.Request, options: Options, completion: Completion, generation: Generation
) -> web.StreamResponse:
    stream = await open_stream(request)
    options_of_request = completion.options_of_request
    head = {
        "id": f"cmpl-{options_of_request.request_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": options_of_request.model,
    }
    opening = compact(head)[:-1] + ',"choices":['
    mark = compact(fingerprint(options))
    while not generation.is_taken:
        for choice, portion in await generation.more():
            tail = _running_usage(completion, choice, portion)
            if portion.is_last and not options_of_request.include_usage:
                tail = f',"system_fingerprint":{mark}{tail}'
            await stream.send(f"{opening}{compact(_piece(completion, choice, portion))}]{tail}}}")
        if generation.has_failed:
            return await stream.fail()
    if options_of_request.include_usage:
        usage = compact(last_usage(options, generation, reports_created=False))
        await stream.send(f'{opening}],"usage":{usage},"system_fingerprint":{mark}}}')
    await stream.send("[DONE]")
    return await stream.close()


def _piece(completion: Completion, choice: Choice, portion: Portion) -> dict[str, Any]:
    reports_ids, is_first = completion.options_of_request.returns_token_ids, portion.start == 0
    return {
        "index": choice.index,
        "text": (_echo(completion, choice) if is_first else "") + portion.text,
        "logprobs": _logprobs(completion, choice, portion.start, portion.end),
        "finish_reason": choice.script.finish_reason if portion.is_last else None,
        "stop_reason": choice.script.stop_reason if portion.is_last else None,
        "prompt_token_ids": list(choice.prompt.tokens) if reports_ids and is_first else None,
        "token_ids": choice.script.token_ids(portion.start, portion.end) if reports_ids else None,
    }


def _running_usage(completion: Completion, choice: Choice, portion: Portion) -> str:
    if not completion.options_of_request.continuous_usage:
        return ""
    return f',"usage":{compact(counts(len(choice.prompt.tokens), portion.end))}'
