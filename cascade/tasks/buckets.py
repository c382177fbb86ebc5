"""The bucket of tasks a prompt belongs to, by a list of rules of which the first that holds decides.

A labelled file may bring buckets of its own; at work only these can be told.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from cascade.tasks.features import Features


class Bucket(StrEnum):
    """Tasks on which models of different sizes differ alike."""

    VISION = "vision"
    TOOLS = "tools"
    CODE = "code"
    CHOICE = "choice"
    MATHS = "maths"
    EXTRACTION = "extraction"
    CHANGING = "changing"
    WRITING = "writing"
    QUESTION = "question"
    CHAT = "chat"


RULES: tuple[tuple[Bucket, Callable[[Features], bool]], ...] = (
    (Bucket.VISION, lambda seen: seen.images > 0),
    (Bucket.TOOLS, lambda seen: seen.tools > 0),
    (Bucket.CODE, lambda seen: seen.fences > 0 or seen.code_marks * 12 > seen.words + 12),
    (Bucket.CHOICE, lambda seen: seen.options >= 3),
    (Bucket.EXTRACTION, lambda seen: seen.is_json_asked or seen.extracting > 0),
    (Bucket.CHANGING, lambda seen: seen.changing > 0),
    (Bucket.WRITING, lambda seen: seen.writing > 0 and seen.numbers < 3),
    (Bucket.MATHS, lambda seen: seen.numbers >= 2 and (seen.numbers + seen.maths_marks) * 20 > seen.words),
    (Bucket.QUESTION, lambda seen: seen.asking > 0),
)
"""Tools and pictures first: they bind whatever the words say. Text to work on may hold anything, so what is asked to be
done with it goes before what it looks like."""


def bucket_of(features: Features) -> Bucket:
    """The first rule that holds; small talk where none does."""
    return next((bucket for bucket, holds in RULES if holds(features)), Bucket.CHAT)
