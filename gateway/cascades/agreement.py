"""Whether two answers to one question agree, as far as text can tell, or as a judge model of the user's says. Pure."""

from __future__ import annotations

import re

import msgspec

from routing.reading.conversation import open_message

WORDS = re.compile(r"[^\W_]+", re.UNICODE)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

SHORT_WORDS = 12
"""Answers no longer than this agree only if they say the same words."""

ALIKE = 0.6
"""Longer ones agree if they have this share of their words in common, and end on the same number where both do."""

VERDICT = re.compile(r"\b(same|different)\b", re.IGNORECASE)


def agree(ours: str, theirs: str) -> bool:
    """By normalised text: case, marks and order of phrases aside."""
    left, right = _json(ours), _json(theirs)
    if left is not None or right is not None:
        return left == right
    mine, other = WORDS.findall(ours.lower()), WORDS.findall(theirs.lower())
    if max(len(mine), len(other)) <= SHORT_WORDS:
        return mine == other
    if (last := _last_number(ours)) is not None and (end := _last_number(theirs)) is not None and last != end:
        return False
    common = len(set(mine) & set(other))
    return common >= ALIKE * max(1, min(len(set(mine)), len(set(other))))


def spoken(answer: bytes) -> str:
    """The text of a generated message in canonical bytes."""
    return answer.removeprefix(open_message("assistant")).decode("utf-8", "replace").strip()


def question(asked: str, ours: str, theirs: str) -> str:
    """What a judge model is asked, in one turn."""
    return (
        "Two answers to the same question follow. Say SAME if a reader would be served equally well by either, "
        f"else say DIFFERENT. Answer with that one word.\n\nQuestion:\n{asked}\n\nFirst answer:\n{ours}\n\n"
        f"Second answer:\n{theirs}\n"
    )


def verdict(said: str) -> bool | None:
    """What a judge model has said, None where it said neither."""
    found = VERDICT.search(said)
    return None if found is None else found[1].lower() == "same"


def _json(text: str) -> object:
    held = text.strip()
    if not held.startswith(("{", "[")):
        return None
    try:
        return msgspec.json.decode(held.encode())
    except msgspec.MsgspecError:
        return None


def _last_number(text: str) -> float | None:
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None
