"""Integers that Python does not convert: engines that parse JSON with Python fail on more than 4,300 digits."""

from __future__ import annotations

import json
import re

import msgspec

from routing.reading.once import TOP_LEVEL
from msgspec import Raw

MOST_DIGITS = 4300
"""As `sys.set_int_max_str_digits` has it unless told otherwise."""

DIGITS = b"0123456789"

ENDS = 64

RUN = re.compile(rb"(?<![0-9])[0-9]{%d}" % (MOST_DIGITS + 1))
"""Looked for at the first digit of a run only: else ten runs that are just short enough take a tenth of a second."""



class _TooLong(Exception):  # noqa: N818 - says where to stop
    pass


def long_integer(body: bytes) -> str | None:
    """Return the top-level field that holds an integer of more than `MOST_DIGITS` digits, None where there is none.

    The body must be a JSON object. A run of so many digits covers one of every `MOST_DIGITS + 1` bytes: only those
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
    step = MOST_DIGITS + 1
    probes = body[MOST_DIGITS::step]
    if len(probes.translate(None, DIGITS)) == len(probes):
        return False
    return any(
        body[at : at + ENDS].isdigit() or body[at - ENDS : at].isdigit() for at in range(MOST_DIGITS, len(body), step)
    )


def _checked(digits: str) -> str:
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise _TooLong
    return digits
