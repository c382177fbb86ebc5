"""The client's bytes as the pod gets them: untouched unless a field must change, and then at the top level only."""

from __future__ import annotations

from operator import attrgetter

import msgspec
from msgspec import UNSET, Raw

from routing.reading.bodies import Body, StreamedBody

NOT_THE_CLIENTS = (
    "cache_salt",
    "priority",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "request_id",
    "data_parallel_rank",
)
"""They steer an engine: whose cache, turn or KV, and under which id. A made-up `kv_transfer_params` kills it."""

WITH_USAGE = b',"stream_options":{"include_usage":true}}'

steering = attrgetter(*NOT_THE_CLIENTS)

TOP_LEVEL = msgspec.json.Decoder(dict[str, Raw])
OPTIONS = msgspec.json.Decoder(dict[str, Raw] | None)


def rewrite(raw: bytes, body: Body) -> tuple[bytes, bool]:
    """The body for the pod, and whether usage was asked for on the client's behalf."""
    is_clean = not any(steering(body))
    if not (isinstance(body, StreamedBody) and body.lacks_usage):
        return (raw if is_clean else _edit(raw, lacks_usage=False)), False
    if is_clean and body.stream_options is UNSET:
        return raw.rstrip()[:-1] + WITH_USAGE, True
    return _edit(raw, lacks_usage=True), True


def _edit(raw: bytes, *, lacks_usage: bool) -> bytes:
    fields = TOP_LEVEL.decode(raw)
    for name in NOT_THE_CLIENTS:
        fields.pop(name, None)
    if lacks_usage:
        options = OPTIONS.decode(fields.get("stream_options") or b"null") or {}
        # Without usage the engine takes no notice of this one; with it every chunk would carry what nobody asked for.
        options.pop("continuous_usage_stats", None)
        options["include_usage"] = Raw(b"true")
        fields["stream_options"] = Raw(msgspec.json.encode(options))
    return msgspec.json.encode(fields)
