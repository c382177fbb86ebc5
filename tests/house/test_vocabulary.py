"""Ratchets on the vocabulary. Each bound is the figure of today; lower it when the figure falls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.shape import CORE
from tests.house.vocabulary import (
    archaic_per_1000,
    defined_names,
    docstrings_and_comments,
    parts,
    retired_names,
    retired_words,
)
from tests.sources import FOLDERS, ROOT, parse, read_sources

MAX_RETIRED_NAMES = {"core": 58, "all": 541}
"""Names with a retired part, of the packages that carry requests and of the whole repository."""

MAX_ARCHAIC = {"docs": 1.4, "core": 2.1, "all": 9.9}
"""Archaic phrases per thousand words: in docs; in docstrings and comments."""

DOCS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "deploy/**/*.md")


@pytest.mark.parametrize("part", ["core", "all"])
def test_retired_words_do_not_return_in_names(part: str) -> None:
    """A new name takes the word of the glossary."""
    found = retired_names(read_sources(*(CORE if part == "core" else FOLDERS)), retired_words())
    assert found.total() <= MAX_RETIRED_NAMES[part], found.most_common(30)


@pytest.mark.parametrize("part", ["docs", "core", "all"])
def test_prose_does_not_become_more_archaic(part: str) -> None:
    """Phrases that the rules for prose replace may only become fewer."""
    if part == "docs":
        texts = [path.read_text(encoding="utf-8") for pattern in DOCS for path in ROOT.glob(pattern)]
    else:
        texts = [docstrings_and_comments(source) for source in read_sources(*(CORE if part == "core" else FOLDERS))]
    assert archaic_per_1000(texts) <= MAX_ARCHAIC[part]


def test_the_glossary_names_what_replaces_each_retired_word(tmp_path: Path) -> None:
    """The last column holds the retired words, the one before it what to use."""
    page = tmp_path / "page.md"
    page.write_text(
        "| a | b | c |\n\n## Glossary\n\n| thing | use | not |\n|---|---|---|\n| one try | attempt | leg, go |\n"
    )
    assert retired_words(page) == {"leg": "attempt", "go": "attempt"}
    assert retired_words()["rung"] == "cascade, model, escalate"


def test_a_planted_word_is_found_by_its_part() -> None:
    """In classes, functions, parameters, attributes and module names; once per module."""
    source = parse(
        "gateway/told_x.py", "class Told:\n    def f(self, was_told): self.told = told_a = 1\ndef retold(): ..."
    )
    assert set(defined_names(source)) == {"told_x", "Told", "f", "self", "was_told", "told", "told_a", "retold"}
    assert retired_names([source], {"told"}) == {"told": 5}
    assert parts("HttpToldOf") == ["http", "told", "of"]


def test_planted_phrases_are_counted_outside_code() -> None:
    """Per thousand words, in any case; code spans and fences are no prose."""
    source = parse("gateway/a.py", '"""Nobody is told."""\n# lately\nx = "nobody"')
    assert archaic_per_1000([docstrings_and_comments(source)]) == pytest.approx(3 / 5 * 1000)
    assert archaic_per_1000(["`nobody` one\n```\nnobody\n```\n", "two"]) == 0.0
    assert archaic_per_1000([]) == 0.0
