"""What makes a body invalid before its fields are looked at, in words that help the client.

Of two equal fields, parsers differ in which one counts: ours and vLLM's take the last; a filter or an engine that takes
the first would act on another model, limit or prompt than the one that was judged. In a small body all fields of the
top level are checked. A large one is not read a second time: the parser hands over each single value that it meets, and
a repeated prompt is looked for where much of the body was not accounted for. Engines that parse JSON with Python fail
on integers of more than 4,300 digits. Text must be UTF-8. Translates msgspec's messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from routing.rejection import Reason, RequestRejected

TRUNCATED = "truncated"

TYPE_NAMES = {"str": "string", "int": "integer", "bool": "boolean"}

FIELD_PATH = re.compile(r" - at `\$([^`]*)`")


def check_text(body: bytes) -> None:
    """Raise `RequestRejected` if a body is not UTF-8 text. Engines would guess at UTF-16 and byte order marks; we do
    not.
    """
    if body.isascii() and b"\0" not in body[:4]:
        return
    if body[:3] == b"\xef\xbb\xbf":
        raise RequestRejected(Reason.BAD_JSON, "The body begins with a byte order mark; send plain UTF-8.")
    if b"\0" in body[:4]:
        raise RequestRejected(Reason.BAD_JSON, "The body is not UTF-8; UTF-16 and UTF-32 are not accepted.")
    try:
        body.decode()
    except UnicodeDecodeError as fault:
        raise RequestRejected(Reason.BAD_JSON, f"The body is not valid UTF-8 (byte {fault.start}).") from None


def rejection_of(fault: Exception, body: bytes) -> RequestRejected:
    """The refusal for what msgspec raised over a body."""
    if isinstance(fault, msgspec.ValidationError):
        return _wrong_type(str(fault))
    if isinstance(fault, RecursionError):
        return RequestRejected(Reason.BAD_JSON, "The body is nested too deeply.")
    if not body.strip():
        return RequestRejected(Reason.BAD_JSON, "The body is empty; a JSON object is expected.")
    if re.search(rb"\\u[dD][89a-fA-F]", body):
        return RequestRejected(
            Reason.BAD_JSON, "The body is not valid JSON, or a string contains an unpaired surrogate (\\ud800-\\udfff)."
        )
    why = str(fault).removeprefix("JSON is malformed: ")
    if TRUNCATED in why:
        # A client with a wrong count, or a broken connection, needs to see how much arrived.
        why = f"it is truncated, it ends after byte {len(body)}"
    return RequestRejected(Reason.BAD_JSON, f"The body is not valid JSON: {why}.")


def _wrong_type(message: str) -> RequestRejected:
    # A value that is looked at by itself is located within itself first, and then within the body.
    path = "".join(reversed(FIELD_PATH.findall(message))).removeprefix(".")
    fault = FIELD_PATH.sub("", message)
    fault = re.sub(r"\b(str|int|bool)\b", lambda match: TYPE_NAMES[match[0]], fault)
    if not path:
        return RequestRejected(Reason.BAD_REQUEST, f"The body must be a JSON object: {_lowered(fault)}.")
    return RequestRejected(Reason.BAD_REQUEST, f"`{path}`: {_lowered(fault)}.", param=path)


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


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
    """Used as the type of a field, so that the parser hands over each value that it meets."""

    name: str
    type: Any
    """As the field is declared."""
    plain: frozenset[type] = frozenset()
    """Types whose values need no further look."""
    max_chars: int = -1
    """Characters of a text."""
    minimum: int = 0
    maximum: int = -1


class UniqueFieldDecoder(Generic[T]):
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
        """Fields that are lists or texts, which the parser does not hand over."""

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
        if given is str and len(value) <= kind.max_chars:
            return value
        if given is int and kind.minimum <= value <= kind.maximum:
            return value
        try:
            return msgspec.convert(value, kind.type)
        except msgspec.ValidationError as fault:
            raise ValueError(str(fault)) from None  # msgspec then says where


def _stands_once(body: bytes) -> bool:
    """Whether it is quickly seen that no field stands twice: in a compact body, or one that is spaced as by Python."""
    compact = msgspec.json.encode(TOP_LEVEL.decode(body))
    return len(compact) == len(body) or msgspec.json.format(compact, indent=0) == body


def repeated_field(body: bytes) -> str | None:
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
    sentence: dict[str, Any] = {
        "name": name,
        "type": hint,
        "plain": frozenset(member for member in members if member in PLAIN),
    }
    for member in members:
        for meta in get_args(member)[1:] if get_origin(member) is Annotated else ():
            if isinstance(meta, Meta) and meta.max_length is not None:
                sentence["max_chars"] = meta.max_length
            elif isinstance(meta, Meta) and meta.ge is not None and meta.le is not None:
                sentence |= {"minimum": meta.ge, "maximum": meta.le}
    return cast("type[_Watched]", _AnyValue(f"Once_{name}", (_Watched,), sentence))


MAX_DIGITS = 4300
"""As `sys.set_int_max_str_digits` has it unless told otherwise."""

DIGITS = b"0123456789"

ENDS = 64

RUN = re.compile(rb"(?<![0-9])[0-9]{%d}" % (MAX_DIGITS + 1))
"""Looked for at the first digit of a run only: else ten runs that are just short enough take a tenth of a second."""


class _TooLong(Exception):  # noqa: N818 - says where to stop
    pass


def long_integer(body: bytes) -> str | None:
    """Return the top-level field that holds an integer of more than `MAX_DIGITS` digits, or None.

    The body must be a JSON object. A run that long covers one of every `MAX_DIGITS + 1` bytes: only those
    are looked at, 30 of them in 128 KB.
    """
    if not _may_hold(body):
        return None
    for name, value in TOP_LEVEL.decode(body).items():
        if RUN.search(value):
            try:
                json.loads(bytes(value), parse_int=_checked, parse_float=str)
            except _TooLong:
                return name
            except (ValueError, RecursionError):
                continue
    return None


def _may_hold(body: bytes) -> bool:
    step = MAX_DIGITS + 1
    probes = body[MAX_DIGITS::step]
    if len(probes.translate(None, DIGITS)) == len(probes):
        return False
    return any(
        body[at : at + ENDS].isdigit() or body[at - ENDS : at].isdigit() for at in range(MAX_DIGITS, len(body), step)
    )


def _checked(digits: str) -> str:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise _TooLong
    return digits
