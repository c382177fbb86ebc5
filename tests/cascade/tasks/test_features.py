"""Counts over prompts: of the last text, bounded, and of no words that could be read back."""

from dataclasses import astuple

from cascade.tasks.features import LOOKED_AT, Features, difficulty, features_of


def test_counts() -> None:
    """What stands in a small problem."""
    seen = features_of(["Hello", "How many apples are 3 + 4.5?\nWrite JSON: `x == 1;`"], tools=2)
    assert (seen.turns, seen.numbers, seen.tools) == (2, 3, 2)
    assert seen.asking >= 3
    assert seen.extracting == 1
    assert seen.writing == 1


def test_only_the_last_text_is_read() -> None:
    """Of earlier turns only the number counts."""
    assert features_of(["1 2 3 4", "Hi"]).numbers == 0
    assert features_of(["1 2 3 4", "Hi"]).turns == 2


def test_a_long_prompt_costs_no_more_than_its_end() -> None:
    """A megabyte is looked at like a page."""
    seen = features_of(["7 " * 1_000_000])
    assert seen.numbers <= LOOKED_AT // 2


def test_nothing_is_no_fault() -> None:
    """A prompt without text has features too."""
    assert features_of([]) == Features(turns=0)


def test_features_hold_numbers_only() -> None:
    """No text is kept."""
    seen = features_of(["secret"])
    assert all(isinstance(value, int) for value in astuple(seen))


def test_more_of_a_problem_is_harder() -> None:
    """The rule that needs no learning goes the right way."""
    easy, hard = features_of(["What is 2 + 2?"]), features_of(["If 3 x + 7 = 12 and 5 y - 2 x = 9, " * 5])
    assert difficulty(easy) < difficulty(hard)
