"""Each field that decides something stands once in a body: of two, parsers differ in which one counts.

Our parser and vLLM's take the last; a filter or an engine that takes the first would act on another model, limit or
prompt than the one that was judged. In a small body all fields of the top level are looked at. A large one is not read
a second time: the parser hands over each single value that it meets, and a prompt that stands twice is looked for
where much of the body was not accounted for. Knows no field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

T = TypeVar("T", bound=Struct)

PLAIN = (str, int, bool, NoneType, UnsetType)

SMALL = 4096
"""Bytes of a body whose fields are all looked at, and of a large one that need not be accounted for."""

TOP_LEVEL = msgspec.json.Decoder(dict[str, Raw])

ESCAPED_NAME = re.compile(rb"\\u00[567]")
"""Only so can a letter or `_` of a field's name be written otherwise."""


class _AnyValue(type):
    """Has the parser take whatever the hook returns: it asks whether that is of the field's type."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class _Watched(metaclass=_AnyValue):
    """Stands in for the type of a field, so that the parser hands over each value that it meets."""

    name: str
    type: Any
    """As the field is declared."""
    plain: frozenset[type] = frozenset()
    """Types whose values need no further look."""
    longest: int = -1
    """Characters of a text."""
    least: int = 0
    most: int = -1


class OnceDecoder(Generic[T]):
    """Decodes bodies of one type, and notices fields that stand twice. Not for two threads at a time."""

    def __init__(self, body: type[T]) -> None:
        hints = get_type_hints(body, include_extras=True)
        watched = {name: _watch(name, hint) for name, hint in hints.items() if _is_single(hint)}
        defaults = {field.name: field.default for field in msgspec.structs.fields(body)}
        fields = [(name, kind, defaults[name]) for name, kind in watched.items()]
        known = msgspec.defstruct(body.__name__, fields, bases=(body,), kw_only=True)
        self._seen: list[type[_Watched]] = []
        self._plain: Callable[[bytes], T] = msgspec.json.Decoder(body).decode
        self._watching = cast("Callable[[bytes], T]", msgspec.json.Decoder(known, dec_hook=self._take).decode)
        self._many = [name for name, hint in hints.items() if name not in watched and hint is not Raw]
        """Fields that are lists or texts, which the parser hands over to nobody."""

    def decode(self, body: bytes) -> tuple[T, bool]:
        """Return the body, and whether fields may stand twice in it: `repeated` then knows. Raises as msgspec does."""
        if len(body) <= SMALL:
            return self._plain(body), not _stands_once(body)
        seen = self._seen
        seen.clear()
        found = self._watching(body)
        return found, len(set(seen)) != len(seen)

    def hides(self, fields: T, body: bytes, accounted: int) -> bool:
        """Return whether a prompt may stand twice in a large body, of which `accounted` bytes were read as prompt.

        A parser that takes the first of two can so never see much more than was accounted for.
        """
        if len(body) <= 2 * accounted + SMALL:
            return False
        for name in self._many:
            if getattr(fields, name) is not None and body.count(b'"%b"' % name.encode()) > 1:
                return True
        return b"\\u00" in body and ESCAPED_NAME.search(body) is not None

    def _take(self, kind: type[_Watched], value: Any) -> Any:
        self._seen.append(kind)
        given = type(value)
        if given in kind.plain:
            return value
        if given is str and len(value) <= kind.longest:
            return value
        if given is int and kind.least <= value <= kind.most:
            return value
        try:
            return msgspec.convert(value, kind.type)
        except msgspec.ValidationError as fault:
            raise ValueError(str(fault)) from None  # msgspec then says where


def _stands_once(body: bytes) -> bool:
    """Whether it is quickly seen that no field stands twice: in a compact body, or one that is spaced as by Python."""
    compact = msgspec.json.encode(TOP_LEVEL.decode(body))
    return len(compact) == len(body) or msgspec.json.format(compact, indent=0) == body


def repeated(body: bytes) -> str | None:
    """Return the first field that stands twice at the top of a body that is known to be JSON; None: none does."""
    try:
        pairs = json.loads(body, object_pairs_hook=list, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return str(name)
        seen.add(name)
    return None


def _members(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _is_single(hint: Any) -> bool:
    """Whether a field holds one value: a text, a number, a flag, an object with a few of them."""
    bare = [_bare(member) for member in _members(hint)]
    return all(isinstance(kind, type) and (kind in PLAIN or issubclass(kind, Struct)) for kind in bare)


def _watch(name: str, hint: Any) -> type[_Watched]:
    members = _members(hint)
    words: dict[str, Any] = {
        "name": name,
        "type": hint,
        "plain": frozenset(member for member in members if member in PLAIN),
    }
    for member in members:
        for meta in get_args(member)[1:] if get_origin(member) is Annotated else ():
            if isinstance(meta, Meta) and meta.max_length is not None:
                words["longest"] = meta.max_length
            elif isinstance(meta, Meta) and meta.ge is not None and meta.le is not None:
                words |= {"least": meta.ge, "most": meta.le}
    return cast("type[_Watched]", _AnyValue(f"Once_{name}", (_Watched,), words))
