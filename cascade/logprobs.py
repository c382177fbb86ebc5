"""Log-probabilities requested by a judge and not by the client: added to the pod's request, removed from its response.

What remains is what the pod would have sent without the request: the same fields, with the same empty values. Whole
events and bodies only. No HTTP.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from routing.request import Api

LOGPROB_APIS = frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES})
"""vLLM's Anthropic API gives none, in any version up to 0.32."""

INCLUDE_LOGPROBS = "message.output_text.logprobs"

LOGPROBS = b'logprobs"'
"""Occurs in everything that has to be parsed: the end of `"logprobs"` and of `"top_logprobs"`."""

FIELDS = msgspec.json.Decoder(dict[str, Raw])
CHOICES = msgspec.json.Decoder(list[dict[str, Raw]])
NULL = Raw(b"null")
EMPTY_LIST = Raw(b"[]")


class LogprobOptions(Struct):
    """Fields of a client's body about log-probabilities."""

    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None


LOGPROB_OPTIONS = msgspec.json.Decoder(LogprobOptions)


class LogprobFilter(Struct, frozen=True):
    """What is taken out of an answer. `count`: so many of the likeliest are left at each place; None: nothing is."""

    api: Api
    max_top: int | None = None

    def filter_event(self, event: bytes) -> bytes:
        """One event of a stream, with its end; invalid JSON is returned unchanged."""
        if LOGPROBS not in event:
            return event
        lines = event.split(b"\n")
        for at, line in enumerate(lines):
            if line.startswith(b"data:") and LOGPROBS in line:
                lines[at] = b"data: " + self.filter_body(line[5:].strip())
        return b"\n".join(lines)

    def filter_events(self, events: bytes) -> bytes:
        """Some of them, one after the other."""
        if LOGPROBS not in events:
            return events
        ends = events.split(b"\n\n")
        return b"\n\n".join([*(self.filter_event(event) for event in ends[:-1]), self.filter_event(ends[-1])])

    def filter_body(self, raw: bytes) -> bytes:
        """The JSON of an event, or of a whole answer."""
        try:
            fields = FIELDS.decode(raw)
            if self.api is Api.RESPONSES:
                return _trimmed_response(raw, fields, self.max_top)
            choices = CHOICES.decode(fields.get("choices", EMPTY_LIST))
            for choice in choices:
                if "logprobs" in choice:
                    choice["logprobs"] = self._trimmed(choice["logprobs"])
            fields["choices"] = Raw(msgspec.json.encode(choices))
            return msgspec.json.encode(fields)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return raw

    def _trimmed(self, logprobs: Raw) -> Raw:
        count = self.max_top
        held = None if count is None else msgspec.json.decode(logprobs)
        if count is None or not isinstance(held, dict):
            return NULL
        if self.api is Api.CHAT:
            _shorten(held.get("content"), count)
        else:
            # vLLM adds the chosen token where it is not among them.
            tops = held.get("top_logprobs")
            held["top_logprobs"] = [
                dict(list(top.items())[: count + 1]) if isinstance(top, dict) else None
                for top in (tops if isinstance(tops, list) else ())
            ]
        return Raw(msgspec.json.encode(held))


def _shorten(entries: object, count: int) -> None:
    """Shorten the lists of the likeliest; what is no list of tokens is left as the pod sent it."""
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            likeliest = entry.get("top_logprobs")
            entry["top_logprobs"] = likeliest[:count] if isinstance(likeliest, list) else []


NESTED_FIELDS = frozenset({"response", "part", "item", "output"})
"""Fields of a responses event, or of a response, within which there may be some."""


def _trimmed_response(raw: bytes, fields: dict[str, Raw], count: int | None) -> bytes:
    if NESTED_FIELDS.isdisjoint(fields):
        if "logprobs" in fields and count is None:
            fields["logprobs"] = EMPTY_LIST
            return msgspec.json.encode(fields)
        if "logprobs" not in fields:
            return raw
    held = msgspec.json.decode(raw)
    _trim_deep(held, count)
    return msgspec.json.encode(held)


def _trim_deep(held: Any, count: int | None) -> None:
    if isinstance(held, list):
        for each in held:
            _trim_deep(each, count)
    elif isinstance(held, dict):
        if held.get("object") == "response":
            held["top_logprobs"] = count
        entries = held.get("logprobs")
        if isinstance(entries, list) and count is not None:
            _shorten(entries, count)
        elif isinstance(entries, list):
            # As vLLM has it: in a part nothing, in an event a list of nothing.
            held["logprobs"] = None if held.get("type") == "output_text" else []
        for key in NESTED_FIELDS | {"content"}:
            _trim_deep(held.get(key), count)


def add_logprobs(api: Api, body: bytes, top: int) -> tuple[bytes, LogprobFilter | None]:
    """A body that requests this many of the likeliest tokens at each position, and what to remove from the answer,
    None where the client wants it all. A body with invalid fields is returned unchanged: the pod rejects it.
    """
    try:
        fields, options = FIELDS.decode(body), LOGPROB_OPTIONS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body, None
    if api is Api.CHAT:
        wanted = (options.top_logprobs or 0) if options.logprobs is True else None
        fields["logprobs"] = Raw(b"true")
        fields["top_logprobs"] = Raw(b"%d" % max(top, wanted or 0))
    elif api is Api.COMPLETIONS:
        wanted = options.logprobs if type(options.logprobs) is int else None
        fields["logprobs"] = Raw(b"%d" % max(top, wanted or 0))
    elif api is Api.RESPONSES:
        included = options.include or []
        wanted = (options.top_logprobs or 0) if INCLUDE_LOGPROBS in included else None
        if wanted is None:
            fields["include"] = Raw(msgspec.json.encode([*included, INCLUDE_LOGPROBS]))
        fields["top_logprobs"] = Raw(b"%d" % max(top, wanted or 0))
    else:
        return body, None
    return msgspec.json.encode(fields), None if wanted is not None and wanted >= top else LogprobFilter(api, wanted)
