"""What a request to a ladder asks of its rung: read from its body once, by counting; no text of it is kept.

Only bodies to ladders come here: what all requests are read for stands in `routing/reading/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from cascade.ladder import Ability
from cascade.tasks.buckets import Bucket, bucket_of
from cascade.tasks.features import Features, features_of
from routing.rejection import Reason, Refused
from routing.request import Request

IMAGES = frozenset({"image_url", "input_image", "image"})

JSON_WORDS = frozenset({"json_object", "json_schema"})

THINKING_OFF = frozenset({"none", "minimal"})


class Wishes(Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may say of rungs in its body, under `hearth`."""

    min_rung: str | None = None
    max_rung: str | None = None
    never_escalate: bool = False
    prefer: str | None = None


class Format(Struct):
    type: str = ""
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None


class Text(Struct):
    format: Format | None = None


class LadderBody(Struct):
    """The bodies of all generating APIs, as far as ladders look at them."""

    messages: list[Any] | None = None
    prompt: Any = None
    input: Any = None
    system: Any = None
    instructions: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: Format | None = None
    text: Text | Any = None
    reasoning_effort: str | None = None
    hearth: Wishes = field(default_factory=Wishes)


BODY = msgspec.json.Decoder(LadderBody)


class Asked(Struct, frozen=True):
    """What is asked, in counts."""

    features: Features = Features()
    bucket: str = Bucket.CHAT
    needs: frozenset[Ability] = frozenset()
    wants_json: bool = False
    schema: Any = None
    wishes: Wishes = Wishes()


def read_asked(body: bytes) -> Asked:
    """Of a client's body. What cannot be read asks for nothing: the engine judges it.

    Raises `Refused` where it is `hearth`, our own field, that is wrong.
    """
    try:
        told = BODY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Asked(wishes=_wishes(body))
    texts, images = _texts(told)
    tools = told.tools if told.tool_choice != "none" else None
    wanted = told.response_format or (_format(told.text))
    is_json = wanted is not None and wanted.type in JSON_WORDS
    features = features_of(texts, tools=len(tools or ()), images=images, is_json_asked=is_json)
    needs = {
        Ability.TOOLS: bool(tools),
        Ability.JSON: is_json,
        Ability.VISION: images > 0,
        Ability.REASONING: told.reasoning_effort is not None and told.reasoning_effort not in THINKING_OFF,
    }
    return Asked(
        features=features,
        bucket=bucket_of(features).value,
        needs=frozenset(ability for ability, is_needed in needs.items() if is_needed),
        wants_json=is_json,
        schema=_schema(wanted) if is_json else None,
        wishes=told.hearth,
    )


class OnlyWishes(Struct):
    hearth: Wishes = field(default_factory=Wishes)


WISHES = msgspec.json.Decoder(OnlyWishes)


def question_in(body: bytes) -> str:
    """The last text that a client's body says, for a judge model to read."""
    try:
        texts, _ = _texts(BODY.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return texts[-1] if texts else ""


def _wishes(body: bytes) -> Wishes:
    try:
        return WISHES.decode(body).hearth
    except msgspec.ValidationError as fault:
        raise Refused(Reason.BAD_REQUEST, f"`hearth`: {fault}", param="hearth") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Wishes()


def _format(text: Any) -> Format | None:
    """Of a responses request: `text.format`."""
    try:
        return msgspec.convert(text, Text).format if isinstance(text, dict) else None
    except msgspec.ValidationError:
        return None


def _schema(wanted: Format | None) -> Any:
    if wanted is None:
        return None
    return wanted.schema if wanted.schema is not None else (wanted.json_schema or {}).get("schema")


def _texts(told: LadderBody) -> tuple[list[str], int]:
    """The texts of the turns in their order, and how many pictures stand among them."""
    texts: list[str] = []
    images = 0
    for turn in _turns(told):
        parts = turn if isinstance(turn, list) else [turn]
        texts.append("\n".join(_text(part) for part in parts))
        images += sum(isinstance(part, dict) and part.get("type") in IMAGES for part in parts)
    return texts, images


def _turns(told: LadderBody) -> Iterator[Any]:
    yield from (part for part in (told.system, told.instructions) if part)
    for message in told.messages or ():
        yield message.get("content") or "" if isinstance(message, dict) else ""
    for given in (told.prompt, told.input):
        if isinstance(given, list):
            for item in given:
                yield item.get("content", item) or "" if isinstance(item, dict) else item
        elif given is not None:
            yield given


def _text(part: Any) -> str:
    if isinstance(part, str):
        return part
    found = part.get("text") if isinstance(part, dict) else None
    return found if isinstance(found, str) else ""


def tokens_of(request: Request, size_per_token: float) -> int:
    """About how many tokens a request's prompt and the longest answer that it may have take."""
    return int(request.prompt.size / max(size_per_token, 1.0)) + (request.max_tokens or 0)
