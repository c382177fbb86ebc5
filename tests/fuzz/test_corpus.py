"""What was ever worth keeping is fed to every parser again, and some changes of it: no crash, no wrong blame."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.mutating import mutated
from tests.fuzz.registry import CORPUS, TARGETS, seeds
from tests.fuzz.target import Target, cut

CHANGES = 400
"""Changed inputs for each target: the same in every run; long runs draw fresh ones."""


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_does_no_harm(name: str) -> None:
    """Every kept input is read or refused as it ought to be."""
    kept = seeds(name)
    assert kept
    for raw in kept:
        TARGETS[name].feed(raw)


@pytest.mark.parametrize("name", TARGETS)
def test_changes_of_the_corpus_do_no_harm(name: str) -> None:
    """So are inputs near them."""
    target, kept, draw = TARGETS[name], seeds(name), Random(name)
    for _ in range(CHANGES):
        target.feed(mutated(kept, target.words, draw))


def test_every_folder_of_the_corpus_has_its_parser() -> None:
    """Nothing is kept for a parser that is not there any more."""
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)


def test_a_parser_that_falls_over_is_noticed() -> None:
    """The changes reach what stands a few bytes from a seed."""

    def feed(raw: bytes) -> None:
        assert b"\x00" not in raw

    fragile, draw = Target("fragile", feed), Random(1)
    fed = [mutated([b"sound"], (), draw) for _ in range(CHANGES)]
    with pytest.raises(AssertionError):
        any(map(fragile.feed, fed))


def test_pieces_are_the_full_text() -> None:
    """Cutting loses nothing."""
    for by in range(256):
        assert b"".join(cut(b"abcdefgh" * 20, by)) == b"abcdefgh" * 20
