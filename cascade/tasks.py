"""Task buckets of prompts, derived from a few counts over the prompt's text. The counts are kept, the text is not.

Only the last `LOOKED_AT` characters are read: the question stands at the end, and a long prompt must cost no more than
a short one. A labelled file may bring buckets of its own; the gateway computes only these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log1p

LOOKED_AT = 8_192
"""Characters of the last text. All expressions below are linear in them."""

WORD = re.compile(r"[^\W\d_]+")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
CODE = re.compile(r"\b(?:def|class|import|return|function|const|select|from|where|void|struct|fn)\b|[{};]|=>|==|\(\)")
MATHS = re.compile(r"[=+*/^%$<>√∑∫≤≥]|\\(?:frac|sqrt|sum|int|boxed)\b")
OPTION = re.compile(r"^\s*\(?[A-J][).:]\s", re.MULTILINE)
ASKING = frozenset({"what", "who", "when", "where", "which", "why", "how", "many", "much", "is", "are", "does", "can"})
WRITING = frozenset({"write", "compose", "draft", "poem", "story", "essay", "email", "letter", "song", "blog"})
CHANGING = frozenset({"translate", "summarize", "summarise", "rewrite", "paraphrase", "shorten", "proofread", "tldr"})
EXTRACTING = frozenset({"extract", "classify", "label", "json", "fields", "entities", "sentiment", "category", "csv"})


@dataclass(frozen=True, slots=True)
class Features:
    """Counts over the last text of a prompt, and what else is asked of the model."""

    turns: int = 1
    words: int = 0
    numbers: int = 0
    fences: int = 0
    code_marks: int = 0
    maths_marks: int = 0
    options: int = 0
    """Lines that look like the options of a multiple choice."""
    asking: int = 0
    writing: int = 0
    changing: int = 0
    extracting: int = 0
    tools: int = 0
    images: int = 0
    is_json_asked: bool = False


def features_of(texts: Sequence[str], *, tools: int = 0, images: int = 0, is_json_asked: bool = False) -> Features:
    """Of the texts of a prompt in their order: turns of a conversation, or one text alone."""
    text = texts[-1][-LOOKED_AT:] if texts else ""
    words = [word.lower() for word in WORD.findall(text)]
    return Features(
        turns=len(texts),
        words=len(words),
        numbers=len(NUMBER.findall(text)),
        fences=text.count("```") // 2,
        code_marks=len(CODE.findall(text)),
        maths_marks=len(MATHS.findall(text)),
        options=len(OPTION.findall(text)),
        asking=text.count("?") + sum(word in ASKING for word in words),
        writing=sum(word in WRITING for word in words),
        changing=sum(word in CHANGING for word in words),
        extracting=sum(word in EXTRACTING for word in words),
        tools=tools,
        images=images,
        is_json_asked=is_json_asked,
    )


def difficulty(features: Features) -> float:
    """How hard a prompt looks, without anything learned: longer is harder, numbers, code and turns half as much so.

    A sum of logarithms of counts, about 1 for a word of greeting and 10 for a page of problems. As a signal of the
    prompt it is used negated: higher = surer.
    """
    counts = (features.numbers, features.code_marks, features.turns - 1)
    return log1p(features.words) + sum(log1p(max(0, count)) for count in counts) / 2


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
