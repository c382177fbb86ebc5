"""A client's body as a pod gets it: untouched unless a field must change, and then at the top level only.

Also the body with a lower limit on its output, and the body for the prefill engine of a pair. There what shapes the
prompt is unchanged: the KV is the decode engine's own only if both read the same tokens. What shapes the response
goes: it costs, it may be rejected together with one token, and the decode engine gets it anyway.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter

import msgspec
from msgspec import UNSET, Raw

from routing.reading.bodies import BODIES, RequestBody, StreamedBody
from routing.request import Api

RESERVED_FIELDS = (
    "cache_salt",
    "priority",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "request_id",
    "data_parallel_rank",
    "stream_interval",
)
"""They steer an engine: whose cache, turn or KV, under which id, and how many tokens an event has: limits count events.
A made-up `kv_transfer_params` kills it."""

WITH_USAGE = b'{"include_usage":true}'

NO_CHANGES: dict[str, bytes] = {}

steering = attrgetter(*RESERVED_FIELDS)

TOP_LEVEL = msgspec.json.Decoder(dict[str, Raw])
OPTIONS = msgspec.json.Decoder(dict[str, Raw] | None)

PLAIN_VALUE = re.compile(rb'\s*:\s*([-+.\w]+|"(?:[^"\\]|\\.)*+")')
"""What follows the name of a field that is a number, null or a text."""


def rewrite(
    raw: bytes, body: RequestBody, changes: dict[str, bytes] = NO_CHANGES, *, adds_usage: bool = True
) -> tuple[bytes, bool]:
    """Return the body for the pod, and whether usage was requested on the client's behalf.

    `changes` are fields, in JSON, that must have other values than the client gave them; usage is requested if
    `adds_usage` is set.
    """
    is_clean = not any(steering(body))
    if not (adds_usage and isinstance(body, StreamedBody) and body.lacks_usage):
        if is_clean:
            return (_spliced(raw, body, changes) if changes else raw), False
        return _edit(raw, changes, lacks_usage=False), False
    if is_clean and body.stream_options is UNSET:
        return _spliced(raw, body, changes | {"stream_options": WITH_USAGE}), True
    return _edit(raw, changes, lacks_usage=True), True


def with_fields(raw: bytes, added: bytes) -> bytes:
    """A JSON object that is not empty, with fields behind those it has."""
    return raw.rstrip()[:-1] + b"," + added + b"}"


def _spliced(raw: bytes, body: RequestBody, changes: dict[str, bytes]) -> bytes:
    """Return the same bytes except for some fields: read once already, a large body need not be read again."""
    spliced, added = raw, []
    for name, value in changes.items():
        if name in RESERVED_FIELDS or getattr(body, name) is UNSET:
            added.append(b'"%b":%b' % (name.encode(), value))
            continue
        spliced = _replaced(spliced, name.encode(), value)
        if not spliced:
            return _edit(raw, changes, lacks_usage=False)
    return with_fields(spliced, b",".join(added)) if added else spliced


def _replaced(raw: bytes, name: bytes, value: bytes) -> bytes:
    r"""`raw` with another value of a field that it has at its top level; nothing where it takes more to find it.

    Where a name stands but once, that is where the field is, unless it is spelled with escapes (`\u00..`).
    """
    token = b'"%b"' % name
    at = raw.find(token)
    if at < 0 or raw.find(token, at + 1) >= 0 or b"\\u00" in raw:
        return b""
    match = PLAIN_VALUE.match(raw, at + len(token))
    return raw[: match.start(1)] + value + raw[match.end(1) :] if match else b""


def _edit(raw: bytes, changes: dict[str, bytes], *, lacks_usage: bool) -> bytes:
    fields = TOP_LEVEL.decode(raw)
    for name in RESERVED_FIELDS:
        fields.pop(name, None)
    for name, value in changes.items():
        fields[name] = Raw(value)
    if lacks_usage:
        options = OPTIONS.decode(fields.get("stream_options") or b"null") or {}
        # Without usage the engine ignores this option; with it every chunk would carry usage that was not requested.
        options.pop("continuous_usage_stats", None)
        options["include_usage"] = Raw(b"true")
        fields["stream_options"] = Raw(msgspec.json.encode(options))
    return msgspec.json.encode(fields)


NUMBER = msgspec.json.Decoder(int | None)


def with_output_limit(api: Api, body: bytes, max_tokens: int) -> bytes:
    """Return a body by which no response has more than `max_tokens` tokens. A lower limit is kept."""
    names = BODIES[api].LIMITED_BY
    if not names:
        return body
    if b"\\u00" not in body and not any(b'"%b"' % name.encode() in body for name in names):
        return with_fields(body, b'"%b":%d' % (names[0].encode(), max_tokens))
    fields = TOP_LEVEL.decode(body)
    given = {name: NUMBER.decode(fields[name]) for name in names if name in fields}
    over = [name for name, limit in given.items() if limit is not None and limit > max_tokens]
    if all(limit is None for limit in given.values()):
        over = [names[0]]
    for name in over:
        fields[name] = Raw(b"%d" % max_tokens)
    return msgspec.json.encode(fields) if over else body


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


def prefill_body(
    api: Api, raw: bytes, fields: bytes = b"", *, ends_by_length: bool = False, dropped: Sequence[str] = ()
) -> bytes:
    """The prefill leg's body. `raw` was read as a request before; `fields` are its `kv_transfer_params`, as JSON.

    `ends_by_length`: a first token that would end the answer must not end this one. `dropped`: further fields that go.
    """
    given = TOP_LEVEL.decode(raw)
    kept = {name: value for name, value in given.items() if name not in DROPPED and name not in dropped}
    kept["stream"] = NO
    kept |= dict.fromkeys(LIMITS[api], ONE)
    if api is Api.RESPONSES:
        kept["store"] = NO
    if ends_by_length and api is not Api.MESSAGES:
        kept["ignore_eos"] = YES
    if fields:
        kept["kv_transfer_params"] = Raw(fields)
    return msgspec.json.encode(kept)
