"""Task buckets of prompts, derived from a few counts over the prompt's text. The counts are kept, the text is not.

Only the last `MAX_CHARACTERS` characters are read: the question is at the end, and a long prompt must cost no more
than a short one. A labelled file may bring buckets of its own; the gateway computes only these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log1p

MAX_CHARACTERS = 8_192
"""Characters of the last text. All expressions below are linear in them."""

WORD = re.compile(r"[^\W\d_]+")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
CODE = re.compile(r"\b(?:def|class|import|return|function|const|select|from|where|void|struct|fn)\b|[{};]|=>|==|\(\)")
MATHS = re.compile(r"[=+*/^%$<>√∑∫≤≥]|\\(?:frac|sqrt|sum|int|boxed)\b")
OPTION = re.compile(r"^\s*\(?[A-J][).:]\s", re.MULTILINE)
QUESTION_WORDS = frozenset(
    {"what", "who", "when", "where", "which", "why", "how", "many", "much", "is", "are", "does", "can"}
)
WRITING_WORDS = frozenset({"write", "compose", "draft", "poem", "story", "essay", "email", "letter", "song", "blog"})
REWRITING_WORDS = frozenset(
    {"translate", "summarize", "summarise", "rewrite", "paraphrase", "shorten", "proofread", "tldr"}
)
EXTRACTION_WORDS = frozenset(
    {"extract", "classify", "label", "json", "fields", "entities", "sentiment", "category", "csv"}
)


@dataclass(frozen=True, slots=True)
class PromptFeatures:
    """Counts over the last text of a prompt, and what else the request contains."""

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
    is_json_requested: bool = False


def prompt_features(
    texts: Sequence[str], *, tools: int = 0, images: int = 0, is_json_requested: bool = False
) -> PromptFeatures:
    """Of the texts of a prompt in their order: turns of a conversation, or one text alone."""
    text = texts[-1][-MAX_CHARACTERS:] if texts else ""
    words = [word.lower() for word in WORD.findall(text)]
    return PromptFeatures(
        turns=len(texts),
        words=len(words),
        numbers=len(NUMBER.findall(text)),
        fences=text.count("```") // 2,
        code_marks=len(CODE.findall(text)),
        maths_marks=len(MATHS.findall(text)),
        options=len(OPTION.findall(text)),
        asking=text.count("?") + sum(word in QUESTION_WORDS for word in words),
        writing=sum(word in WRITING_WORDS for word in words),
        changing=sum(word in REWRITING_WORDS for word in words),
        extracting=sum(word in EXTRACTION_WORDS for word in words),
        tools=tools,
        images=images,
        is_json_requested=is_json_requested,
    )


def difficulty(features: PromptFeatures) -> float:
    """How hard a prompt looks, without anything learned: longer is harder, numbers, code and turns half as much so.

    A sum of logarithms of counts, about 1 for a word of greeting and 10 for a page of problems. As a signal of the
    prompt it is used negated: higher = surer.
    """
    counts = (features.numbers, features.code_marks, features.turns - 1)
    return log1p(features.words) + sum(log1p(max(0, count)) for count in counts) / 2


class TaskBucket(StrEnum):
    """Tasks on which models of different sizes differ alike."""

    VISION = "vision"
    TOOLS = "tools"
    CODE = "code"
    CHOICE = "choice"
    MATHS = "maths"
    EXTRACTION = "extraction"
    REWRITING = "changing"
    WRITING = "writing"
    QUESTION = "question"
    CHAT = "chat"


BUCKET_RULES: tuple[tuple[TaskBucket, Callable[[PromptFeatures], bool]], ...] = (
    (TaskBucket.VISION, lambda seen: seen.images > 0),
    (TaskBucket.TOOLS, lambda seen: seen.tools > 0),
    (TaskBucket.CODE, lambda seen: seen.fences > 0 or seen.code_marks * 12 > seen.words + 12),
    (TaskBucket.CHOICE, lambda seen: seen.options >= 3),
    (TaskBucket.EXTRACTION, lambda seen: seen.is_json_requested or seen.extracting > 0),
    (TaskBucket.REWRITING, lambda seen: seen.changing > 0),
    (TaskBucket.WRITING, lambda seen: seen.writing > 0 and seen.numbers < 3),
    (TaskBucket.MATHS, lambda seen: seen.numbers >= 2 and (seen.numbers + seen.maths_marks) * 20 > seen.words),
    (TaskBucket.QUESTION, lambda seen: seen.asking > 0),
)
"""Tools and pictures first: they bind whatever the words say. Text to work on may hold anything, so what is to be
done with it goes before what it looks like."""


def bucket_of(features: PromptFeatures) -> TaskBucket:
    """The first rule that holds; small talk where none does."""
    return next((bucket for bucket, holds in BUCKET_RULES if holds(features)), TaskBucket.CHAT)
