"""What is wrong with a body, in words that help the client. Knows msgspec's messages, so nobody else has to."""

from __future__ import annotations

import re

import msgspec

from routing.rejection import Reason, Refused

TRUNCATED = "truncated"

PYTHON_WORDS = {"str": "string", "int": "integer", "bool": "boolean"}

PLACE = re.compile(r" - at `\$([^`]*)`")


def check_text(body: bytes) -> None:
    """Raise `Refused` where a body is no UTF-8 text. Engines would guess at UTF-16 and byte order marks; we do not."""
    if body.isascii() and b"\0" not in body[:4]:
        return
    if body[:3] == b"\xef\xbb\xbf":
        raise Refused(Reason.BAD_JSON, "The body begins with a byte order mark; send plain UTF-8.")
    if b"\0" in body[:4]:
        raise Refused(Reason.BAD_JSON, "The body is not UTF-8; UTF-16 and UTF-32 are not accepted.")
    try:
        body.decode()
    except UnicodeDecodeError as fault:
        raise Refused(Reason.BAD_JSON, f"The body is not valid UTF-8 (byte {fault.start}).") from None


def refusal_of(fault: Exception, body: bytes) -> Refused:
    """The refusal for what msgspec raised over a body."""
    if isinstance(fault, msgspec.ValidationError):
        return _wrong_type(str(fault))
    if isinstance(fault, RecursionError):
        return Refused(Reason.BAD_JSON, "The body is nested too deeply.")
    if not body.strip():
        return Refused(Reason.BAD_JSON, "The body is empty; a JSON object is expected.")
    if re.search(rb"\\u[dD][89a-fA-F]", body):
        return Refused(Reason.BAD_JSON, "The body is not valid JSON, or has an unpaired \\ud800-\\udfff in a text.")
    why = str(fault).removeprefix("JSON is malformed: ")
    if TRUNCATED in why:
        # A client that counts wrong, or whose connection broke, has to know how much came.
        why = f"it is truncated, it ends after byte {len(body)}"
    return Refused(Reason.BAD_JSON, f"The body is not valid JSON: {why}.")


def _wrong_type(told: str) -> Refused:
    # A value that is looked at by itself is located within itself first, and then within the body.
    place = "".join(reversed(PLACE.findall(told))).removeprefix(".")
    fault = PLACE.sub("", told)
    fault = re.sub(r"\b(str|int|bool)\b", lambda word: PYTHON_WORDS[word[0]], fault)
    if not place:
        return Refused(Reason.BAD_REQUEST, f"The body must be a JSON object: {_lowered(fault)}.")
    return Refused(Reason.BAD_REQUEST, f"`{place}`: {_lowered(fault)}.", param=place)


def _lowered(words: str) -> str:
    return words[:1].lower() + words[1:]
