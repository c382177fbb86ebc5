"""How single values of a policy are read, and what JSON Schema says of them. Each parser raises `Wrong`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from tenancy.document import Parse, Wrong, flag, not_negative, number, one_of, positive, text, whole
from tenancy.policy import ALGORITHMS
from tenancy.tier import Overload, Unattainable

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read, and the JSON Schema of what can be."""

    parse: Parse[Any]
    schema: Schema


VARIABLE = r"\$\{\w+(:-[^}]*)?\}"

LONGEST_NAME = 128

PREFERENCES = ("cost", "quality")


def _text(pattern: str, **bounds: object) -> Schema:
    """A text of this form, or a variable that may be."""
    return {"type": "string", "pattern": f"^({pattern}|{VARIABLE})$", **bounds}


def _numeric(digits: str, **bounds: object) -> Schema:
    """A number, or a text that is one, as `2e-7` and variables are."""
    return {"anyOf": [bounds, _text(digits)]}


def or_off(kind: Kind) -> Kind:
    """The same, or `off` for what is usual to be lifted. YAML 1.1 reads `off` as false."""

    def parsed(value: object) -> object:
        return OFF if value is False or value == "off" else kind.parse(value)

    return Kind(parsed, {"anyOf": [kind.schema, {"enum": [False, "off"]}]})


class _Off:
    """Says that a limit which is usual does not bind."""

    def __repr__(self) -> str:
        return "off"


OFF = _Off()


def name(value: object) -> str:
    """A tenant's, tier's or group's name: it stands in metrics, paths and headers."""
    words = text(value)
    if len(words) > LONGEST_NAME or not words.isprintable() or "/" in words or words != words.strip():
        raise Wrong(f"must be at most {LONGEST_NAME} printable characters without `/`")
    return words


def names(value: object) -> frozenset[str]:
    """A list of texts."""
    return frozenset(_texts(value))


def some_names(value: object) -> tuple[str, ...]:
    """A list of texts that is not empty, in its order."""
    if not (found := _texts(value)):
        raise Wrong("must name one")
    return tuple(dict.fromkeys(found))


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise Wrong("must be a list")
    return [text(held) for held in value]


def renamings(value: object) -> dict[str, str]:
    """A mapping of texts to texts."""
    if not isinstance(value, dict):
        raise Wrong("must be a mapping of one name to another")
    return {text(old): text(new) for old, new in value.items()}


def priority(value: object) -> int:
    found = whole(value)
    if abs(found) > 1_000_000:
        raise Wrong("must be within a million of 0")
    return found


def fraction(value: object) -> float:
    found = number(value)
    if not 0 <= found <= 1:
        raise Wrong("must be from 0 to 1")
    return found


_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def duration(value: object) -> float:
    """`30s`, `5m`, `12h`, `1d` or `2w`, in seconds."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([smhdw])", text(value))
    if match is None:
        raise Wrong("must be a number of s, m, h, d or w, as in `1d`")
    return int(match[1]) * _SECONDS[match[2]]


def moment(value: object) -> float:
    """A date, or date and time, as Unix time; UTC where it does not say. YAML makes dates of some texts by itself."""
    if not isinstance(value, date):
        try:
            value = datetime.fromisoformat(text(value))
        except ValueError as error:
            if isinstance(error, Wrong):
                raise
            raise Wrong("must be a time as in 2026-12-31T18:00:00Z") from None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def header(value: object) -> str:
    """The name of a request header, in lower case."""
    words = text(value).lower()
    if re.fullmatch(r"[a-z0-9-]+", words) is None:
        raise Wrong("must be the name of a header")
    if words in ("authorization", "x-api-key", "host", "content-type", "content-length"):
        raise Wrong(f"`{words}` has a meaning of its own")
    return words


def headers(value: object) -> tuple[str, ...]:
    """One header or several."""
    return tuple(dict.fromkeys(header(held) for held in (value if isinstance(value, list) else [value])))


def url(value: object) -> str:
    """An https URL; http only to this machine: who can change keys on their way can make tokens."""
    words = text(value)
    if re.fullmatch(_URL, words) is None:
        raise Wrong("must be a URL beginning with https://")
    return words


_URL = r"(https://[^\s/?#@]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?)(/[^\s?#]*)?(\?[^\s#]*)?"


def secret(value: object) -> str:
    words = text(value)
    if len(words) < 16:
        raise Wrong("must have 16 characters or more")
    return words


_DIGEST = re.compile(r"(?:(hmac-sha256:)|sha256:)?([0-9a-fA-F]{64})")


def digest(value: object) -> str:
    """A digest as it is looked up. A key itself must never stand in a file, and is not repeated in a fault."""
    match = _DIGEST.fullmatch(text(value))
    if match is None:
        raise Wrong("must be the sha256 of a key: 64 hexadecimal digits (or hmac-sha256: and as many)")
    return (match[1] or "") + match[2].lower()


def algorithms(value: object) -> tuple[str, ...]:
    """Some of those that are safe."""
    return tuple(one_of(ALGORITHMS)(held) for held in some_names(value))


def leeway(value: object) -> float:
    found = not_negative(value)
    if found > 300:
        raise Wrong("must be 300 at most")
    return found


_WHOLE, _ANY = r"0*[1-9][0-9]*(\.0*)?", r"[0-9]*\.?[0-9]+(e[+-]?[0-9]+)?"
_ABOVE_ZERO = rf"(?=[0.]*[1-9]){_ANY}"

TEXT = Kind(text, {"type": "string", "minLength": 1})
NAME = Kind(name, _text(r"[^/\s]([^/]*[^/\s])?", maxLength=LONGEST_NAME))
FLAG = Kind(flag, {"type": "boolean"})
COUNT = Kind(positive(whole), _numeric(_WHOLE, type="integer", minimum=1))
AMOUNT = Kind(not_negative, _numeric(_ANY, type="number", minimum=0))
ABOVE_ZERO = Kind(positive(number), _numeric(_ABOVE_ZERO, type="number", exclusiveMinimum=0))
FRACTION = Kind(fraction, _numeric(r"0|1|0?\.[0-9]+|[0-9]e-[0-9]+", type="number", minimum=0, maximum=1))
PRIORITY = Kind(priority, _numeric(r"-?[0-9]{1,6}(\.0*)?", type="integer", minimum=-1_000_000, maximum=1_000_000))
MILLISECONDS = Kind(lambda value: positive(number)(value) / 1000, ABOVE_ZERO.schema)
WAIT = Kind(lambda value: not_negative(value) / 1000, AMOUNT.schema)
LEEWAY = Kind(leeway, _numeric(r"[0-2]?[0-9]{1,2}(\.[0-9]+)?|300|[0-9]e-[0-9]+", type="number", minimum=0, maximum=300))
OVERLOAD = Kind(lambda value: Overload(one_of(tuple(Overload))(value)), {"enum": [word.value for word in Overload]})
UNATTAINABLE = Kind(
    lambda value: Unattainable(one_of(tuple(Unattainable))(value)), {"enum": [word.value for word in Unattainable]}
)
PREFERENCE = Kind(one_of(PREFERENCES), {"enum": list(PREFERENCES)})
DURATION = Kind(duration, _text("[1-9][0-9]{0,5}[smhdw]"))
MOMENT = Kind(moment, _text("[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].+)?"))
NAMES = Kind(names, {"type": "array", "items": TEXT.schema})
SOME_NAMES = Kind(some_names, {"type": "array", "items": TEXT.schema, "minItems": 1})
RENAMINGS = Kind(renamings, {"type": "object", "additionalProperties": TEXT.schema, "propertyNames": {"minLength": 1}})
DIGEST = Kind(digest, _text(_DIGEST.pattern))
HEADER_NAMES = Kind(headers, {"anyOf": [_text("[A-Za-z0-9-]+"), {"type": "array", "items": _text("[A-Za-z0-9-]+")}]})
URL = Kind(url, _text(_URL))
SECRET = Kind(secret, {"type": "string", "minLength": 16})
CHOSEN_ALGORITHMS = Kind(algorithms, {"type": "array", "items": {"enum": list(ALGORITHMS)}, "minItems": 1})
