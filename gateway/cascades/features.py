"""Features of a request to a cascade: read from its body once, as counts and needs; no text of it is kept.

Only bodies of requests to cascades are read here: `routing/reading/` reads every body.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from cascade.models import Ability
from cascade.tasks import PromptFeatures, TaskBucket, bucket_of, prompt_features
from routing.reading.bodies import Name
from routing.rejection import Reason, RequestRejected
from routing.request import Request

IMAGES = frozenset({"image_url", "input_image", "image"})

JSON_FORMATS = frozenset({"json_object", "json_schema"})

REASONING_OFF = frozenset({"none", "minimal"})


class CascadeOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a client in its body, under `hearth`."""

    cascade_min_model: Name | None = None
    cascade_max_model: Name | None = None
    cascade_never_escalate: bool = False
    cascade_prefer: Name | None = None
    cascade_bucket: Name | None = None


class _Format(Struct):
    type: str = ""
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None


class _Text(Struct):
    format: _Format | None = None


class _Body(Struct):
    """The fields that are read here, of all generating APIs."""

    messages: list[Any] | None = None
    prompt: Any = None
    input: Any = None
    system: Any = None
    instructions: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: _Format | None = None
    text: _Text | Any = None
    reasoning_effort: str | None = None
    hearth: CascadeOptions = field(default_factory=CascadeOptions)


class _OnlyWishes(Struct):
    hearth: CascadeOptions = field(default_factory=CascadeOptions)


BODY_DECODER = msgspec.json.Decoder(_Body)
OPTIONS_DECODER = msgspec.json.Decoder(_OnlyWishes)


class CascadeRequestFeatures(Struct, frozen=True):
    """What a request needs of its model, and what is known of its prompt."""

    prompt: PromptFeatures = PromptFeatures()
    bucket: str = TaskBucket.CHAT
    needs: frozenset[Ability] = frozenset()
    wants_json: bool = False
    schema: Any = None
    """JSON Schema of the answer, None where the client sent none."""
    options: CascadeOptions = CascadeOptions()


def read_features(body: bytes) -> CascadeRequestFeatures:
    """Return the features of a client's body; of one that cannot be read none, since the engine rejects it.

    Raises `RequestRejected` where `hearth`, our own field, is wrong.
    """
    try:
        fields = BODY_DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return CascadeRequestFeatures(options=_wishes(body))
    texts, images = _texts(fields)
    tools = fields.tools if fields.tool_choice != "none" else None
    wanted = fields.response_format or _format(fields.text)
    is_json = wanted is not None and wanted.type in JSON_FORMATS
    features = prompt_features(texts, tools=len(tools or ()), images=images, is_json_requested=is_json)
    needs = {
        Ability.TOOLS: bool(tools),
        Ability.JSON: is_json,
        Ability.VISION: images > 0,
        Ability.REASONING: fields.reasoning_effort is not None and fields.reasoning_effort not in REASONING_OFF,
    }
    return CascadeRequestFeatures(
        prompt=features,
        bucket=bucket_of(features).value,
        needs=frozenset(ability for ability, is_needed in needs.items() if is_needed),
        wants_json=is_json,
        schema=_schema(wanted) if is_json else None,
        options=fields.hearth,
    )


def last_text(body: bytes) -> str:
    """Return the last text of a client's body, "" where it has none."""
    try:
        texts, _ = _texts(BODY_DECODER.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return texts[-1] if texts else ""


def estimated_tokens(request: Request, size_per_token: float) -> int:
    """Return the estimated tokens of a request's prompt and the longest answer that it may have."""
    return int(request.prompt.size / max(size_per_token, 1.0)) + (request.max_tokens or 0)


def _wishes(body: bytes) -> CascadeOptions:
    try:
        return OPTIONS_DECODER.decode(body).hearth
    except msgspec.ValidationError as error:
        raise RequestRejected(Reason.BAD_REQUEST, f"`hearth`: {error}", param="hearth") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return CascadeOptions()


def _format(text: Any) -> _Format | None:
    """Return `text.format` of a responses request."""
    try:
        return msgspec.convert(text, _Text).format if isinstance(text, dict) else None
    except msgspec.ValidationError:
        return None


def _schema(wanted: _Format | None) -> Any:
    if wanted is None:
        return None
    return wanted.schema if wanted.schema is not None else (wanted.json_schema or {}).get("schema")


def _texts(fields: _Body) -> tuple[list[str], int]:
    """Return the texts of the turns in their order, and the number of images among them."""
    texts: list[str] = []
    images = 0
    for turn in _turns(fields):
        parts = turn if isinstance(turn, list) else [turn]
        texts.append("\n".join(_text(part) for part in parts))
        images += sum(isinstance(part, dict) and _is_image(part.get("type")) for part in parts)
    return texts, images


def _is_image(kind: object) -> bool:
    return isinstance(kind, str) and kind in IMAGES


def _turns(fields: _Body) -> Iterator[Any]:
    yield from (part for part in (fields.system, fields.instructions) if part)
    for message in fields.messages or ():
        yield message.get("content") or "" if isinstance(message, dict) else ""
    for given in (fields.prompt, fields.input):
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
