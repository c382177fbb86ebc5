"""A request's body, field by field, as strict and as lenient as vLLM's validation. Independent of the API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from simulator.surface.wire import ApiError, BadBytesError, malformed

_YES = frozenset({"true", "yes", "on", "1", "y", "t"})
_NO = frozenset({"false", "no", "off", "0", "n", "f"})


class Body:
    """A JSON object and what its fields must be."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    def get(self, name: str) -> Any:
        """Return the raw field; None if it is missing."""
        return self.fields.get(name)

    def integer(self, name: str, default: int | None = None, low: int | None = None) -> int | None:
        """A whole number; digits in a string and 3.0 pass too."""
        value = self.fields.get(name)
        if value is None:
            return default
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            raise malformed(name, "int_parsing", "Input should be a valid integer", value) from None
        has_integer_value = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
        if not has_integer_value or isinstance(number, bool):
            raise malformed(name, "int_type", "Input should be a valid integer", value)
        if low is not None and number < low:
            raise malformed(name, "greater_than_equal", f"Input should be greater than or equal to {low}", value)
        return int(number)

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number between bounds; NaN counts as missing."""
        value = self.fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise malformed(name, "float_parsing", "Input should be a valid number", value)
        if not low <= value <= high:
            raise ApiError(f"{name} must be in [{low:g}, {high:g}], got {value}.", param=name)
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false, or a word or a number for it."""
        value = self.fields.get(name)
        if value is None:
            return default
        lowered = str(value).lower() if isinstance(value, bool | int | float | str) else ""
        lowered = lowered.removesuffix(".0")
        if lowered not in _YES | _NO:
            raise malformed(name, "bool_parsing", "Input should be a valid boolean", value)
        return lowered in _YES

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, str):
            raise malformed(name, "string_type", "Input should be a valid string", value)
        return value

    def required(self, name: str) -> Any:
        """A field that must be there."""
        if self.fields.get(name) is None:
            raise malformed(name, "missing", "Field required")
        return self.fields[name]

    def objects(self, name: str) -> list[dict[str, Any]]:
        """A list of objects; empty when it is not there."""
        value = self.fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise malformed(name, "list_type", "Input should be a valid list", value)
        return value

    def object(self, name: str) -> Body:
        """An object; an empty one when it is not there."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, dict):
            raise malformed(name, "dict_type", "Input should be a valid dictionary", value)
        return Body(value or {})


async def read_body(request: web.Request) -> Body:
    """The request's JSON object, whatever Unicode encoding it has."""
    if request.content_type != "application/json":
        raise ApiError(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            "Bad Request",
            is_format=True,
        )
    raw = await request.read()
    if not raw.strip():
        raise malformed("", "missing", "Field required")
    try:
        fields = json.loads(raw)
    except json.JSONDecodeError as error:
        raise malformed(str(error.pos), "json_invalid", "JSON decode error", error.msg) from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadBytesError from error
    if not isinstance(fields, dict):
        raise malformed("", "model_attributes_type", "Input should be a valid dictionary", fields)
    return Body(fields)
