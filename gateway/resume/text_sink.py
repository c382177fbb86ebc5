"""What an event of an answer says, told text by text to somebody who may have heard some of it: gives back what is new.

Of each API; compared is all that an engine says the same when it is asked the same, which its ids are not.
"""

from __future__ import annotations

from gateway.resume.delivered import Event
from gateway.resume.replay import Hears

THOUGHT = ("reasoning", "reasoning_content")
"""One text, by its new name and its old one."""

TEXTS = (THOUGHT, ("content",), ("refusal",))
"""Of a delta, in the order in which they are said."""

OF_BLOCKS = ("text", "thinking", "partial_json")


def hear_choice(choice: Event, heard: Hears) -> Event | None:
    """What of a choice is new; None where nothing is."""
    is_new = was_all = heard.is_all
    made = dict(choice)
    if (delta := choice.get("delta")) is None:
        made["text"] = heard.text(("text",), choice.get("text") or "")
        says = bool(made["text"])
    else:
        made["delta"] = _hear_delta(delta, heard)
        says = bool(made["delta"])
        is_new = is_new and delta.get("role") is None
    reason = choice.get("finish_reason")
    ends = reason is not None and heard.mark("end", reason)
    if not was_all:
        # Of these nobody knows which belong to the part that is new.
        made |= {name: None for name in ("logprobs", "token_ids") if name in made}
    return made if says or ends or is_new else None


def hear_choices(event: Event, heard: Hears) -> None:
    for choice in event.get("choices") or ():
        hear_choice(choice, heard)


def _hear_delta(delta: Event, heard: Hears) -> Event:
    made = {name: value for name, value in delta.items() if name not in ("role", "tool_calls")}
    for names in TEXTS:
        told = [name for name in names if delta.get(name)]
        if told:
            made |= dict.fromkeys(told, heard.text(names[:1], delta[told[0]]))
    was_all = heard.is_all
    calls = [_hear_call(call, heard) for call in delta.get("tool_calls") or ()]
    if any(calls):
        made["tool_calls"] = [call for call in calls if call]
    return made if was_all or any(made.values()) else {}


def _hear_call(call: Event, heard: Hears) -> Event | None:
    """A call has its id and its name once; what comes behind is arguments."""
    was_all = heard.is_all
    function, at = call.get("function") or {}, call["index"]
    name = heard.text(("name", at), function.get("name") or "")
    arguments = heard.text(("arguments", at), function.get("arguments") or "")
    if was_all:
        return call
    if name:
        return {**call, "function": {**function, "name": name, "arguments": arguments}}
    return {"index": at, "function": {"arguments": arguments}} if arguments else None


def hear_of_message(event: Event, heard: Hears) -> Event | None:
    """What of an event of a message is new; None where nothing is."""
    was_all, new = heard.is_all, _hear_of_message(event, heard)
    return event if was_all else new


def _hear_of_message(event: Event, heard: Hears) -> Event | None:
    kind, delta, block = event["type"], event.get("delta") or {}, event.get("content_block") or {}
    if kind == "ping":
        return None
    name = next((name for name in OF_BLOCKS if name in delta), None)
    if name is not None:
        text = heard.text((name, event["index"]), delta[name] or "")
        return {**event, "delta": {**delta, name: text}} if text else None
    what = (delta.get("type"), delta.get("stop_reason"), block.get("type"), block.get("name"))
    return event if heard.mark(kind, event.get("index"), *what) else None


def hear_of_response(event: Event, heard: Hears) -> Event | None:
    """The same of an event of a response."""
    was_all, new = heard.is_all, _hear_of_response(event, heard)
    return event if was_all else new


def _hear_of_response(event: Event, heard: Hears) -> Event | None:
    kind, delta, item = event["type"], event.get("delta"), event.get("item") or {}
    where = (kind, event.get("output_index"), event.get("content_index"), event.get("summary_index"))
    if isinstance(delta, str):
        text = heard.text(where, delta)
        return {**event, "delta": text, **({"logprobs": []} if "logprobs" in event else {})} if text else None
    return event if heard.mark(*where, item.get("type"), item.get("name")) else None
