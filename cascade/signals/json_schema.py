"""Checks a JSON value against a JSON Schema, in bounded time, by the keywords used most.

Schemas are clients' words: no expression of theirs is ever run (`pattern`, `patternProperties` and `format` are passed
over), references go to the schema itself only, and the whole check stops after `MAX_STEPS`. What is not understood is
taken as met: the check may miss a mismatch, and does not invent one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

MAX_STEPS = 20_000
MAX_DEPTH = 64

MAX_REFERENCE_CHARACTERS = 1024
"""Of a reference, which is read again at each step that follows it."""

MAX_COMPARED = 256
"""Members, of all levels together, of a list or a mapping that is compared with `enum` or `const`."""


class _Tired(Exception):  # noqa: N818 - not an error: the check has taken enough steps
    """More steps than an answer is worth."""


def conforms(value: object, schema: object) -> bool:
    """Return whether the value conforms to the schema; True where bounded time does not suffice."""
    try:
        return _Check(schema).fits(value, schema, 0)
    except _Tired:
        return True


class _Check:
    def __init__(self, root: object) -> None:
        self._root = root
        self._steps = 0

    def fits(self, value: object, schema: object, depth: int) -> bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            return True
        self._tire(schema, depth)
        if isinstance(reference := schema.get("$ref"), str):
            return self.fits(value, self._found(reference), depth + 1)
        return (
            _is_one_of(value, schema)
            and _has_type(value, schema.get("type"))
            and _is_within(value, schema)
            and self._joins(value, schema, depth)
            and self._members(value, schema, depth)
            and self._items(value, schema, depth)
        )

    def _tire(self, schema: Mapping[str, object], depth: int) -> None:
        """Count a step, and one more for each word of the lists that are gone through."""
        lists = (schema.get("enum"), schema.get("required"))
        self._steps += 1 + sum(len(words) for words in lists if isinstance(words, list))
        if self._steps > MAX_STEPS or depth > MAX_DEPTH:
            raise _Tired

    def _found(self, reference: str) -> object:
        """Where a reference into the schema itself points; anything fits where it points elsewhere."""
        place = self._root
        if not reference.startswith("#"):
            return True
        if len(reference) > MAX_REFERENCE_CHARACTERS:
            raise _Tired
        for word in reference[1:].strip("/").split("/") if len(reference) > 1 else ():
            word = word.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901 - as JSON pointers spell it
            if not isinstance(place, dict) or word not in place:
                return True
            place = place[word]
        return place

    def _joins(self, value: object, schema: Mapping[str, object], depth: int) -> bool:
        for word, enough in COMBINATORS.items():
            parts = schema.get(word)
            if isinstance(parts, list) and not enough([self.fits(value, part, depth + 1) for part in parts]):
                return False
        return "not" not in schema or not self.fits(value, schema["not"], depth + 1)

    def _members(self, value: object, schema: Mapping[str, object], depth: int) -> bool:
        if not isinstance(value, dict):
            return True
        required, known = schema.get("required"), schema.get("properties")
        if isinstance(required, list) and any(isinstance(name, str) and name not in value for name in required):
            return False
        shapes = known if isinstance(known, dict) else {}
        rest = schema.get("additionalProperties", True)
        # Names that an expression would have to be run for may be anything.
        rest = True if "patternProperties" in schema else rest
        return all(self.fits(item, shapes.get(name, rest), depth + 1) for name, item in value.items())

    def _items(self, value: object, schema: Mapping[str, object], depth: int) -> bool:
        if not isinstance(value, list):
            return True
        first = schema.get("prefixItems")
        shapes = first if isinstance(first, list) else []
        rest = schema.get("items", True)
        return all(
            self.fits(item, shapes[at] if at < len(shapes) else rest, depth + 1) for at, item in enumerate(value)
        )


COMBINATORS: dict[str, Callable[[list[bool]], bool]] = {
    "allOf": all,
    "anyOf": any,
    "oneOf": lambda met: sum(met) == 1,
}

TYPES: dict[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: not isinstance(value, bool) and isinstance(value, int | float) and value == value // 1,
}


def _has_type(value: object, expected_type: object) -> bool:
    names = expected_type if isinstance(expected_type, list) else [expected_type]
    known = [name for name in names if isinstance(name, str) and name in TYPES]
    return len(known) < len(names) or any(TYPES[name](value) for name in known)


def _is_one_of(value: object, schema: Mapping[str, object]) -> bool:
    options = schema.get("enum")
    if isinstance(options, list) and not any(_same(value, option) for option in options):
        return False
    return "const" not in schema or _same(value, schema["const"])


def _same(one: object, other: object) -> bool:
    """Equal as JSON has it: true is not 1."""
    if isinstance(one, list | dict) and isinstance(other, type(one)):
        _check_size(one)
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _check_size(value: object) -> None:
    """Raise `_Tired` for a value with more than `MAX_COMPARED` members: a comparison would go through all of them, at
    each step anew, and through nesting without end.
    """
    rest, count = [value], 0
    while rest:
        each = rest.pop()
        if isinstance(each, list | dict):
            count += 1 + len(each)
            if count > MAX_COMPARED:
                raise _Tired
            rest.extend(each.values() if isinstance(each, dict) else each)


def _is_within(value: object, schema: Mapping[str, object]) -> bool:
    """Bounds of numbers, and of the lengths of text, lists and mappings."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _is_between(value, schema, "minimum", "maximum") and _is_strictly_between(value, schema)
    for kind, lowest, highest in LENGTHS:
        if isinstance(value, kind):
            return _is_between(len(value), schema, lowest, highest)
    return True


LENGTHS: tuple[tuple[type[str | list[object] | dict[str, object]], str, str], ...] = (
    (str, "minLength", "maxLength"),
    (list, "minItems", "maxItems"),
    (dict, "minProperties", "maxProperties"),
)


def _is_between(size: float, schema: Mapping[str, object], lowest: str, highest: str) -> bool:
    low, high = _number(schema.get(lowest)), _number(schema.get(highest))
    return (low is None or size >= low) and (high is None or size <= high)


def _is_strictly_between(size: float, schema: Mapping[str, object]) -> bool:
    low, high = _number(schema.get("exclusiveMinimum")), _number(schema.get("exclusiveMaximum"))
    return (low is None or size > low) and (high is None or size < high)


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
