"""Scripts: where an answer ends, and why."""

from __future__ import annotations

import pytest

from simulator.language import Speech
from simulator.script import Script, Wish, write_script
from simulator.tokens import MESSAGE_END

TEXT = "one two three four five six"


def recite(wish: Wish) -> Script:
    return write_script(Speech(0, TEXT), None, wish)


def stated(script: Script) -> str:
    return script.text(0, script.tokens)


def test_an_answer_that_ends_by_itself_says_so_with_a_token() -> None:
    """The end-of-sequence token counts and has no text."""
    script = write_script(Speech(1), 5, Wish(100))
    assert (script.tokens, script.natural, script.finish_reason) == (6, 5, "stop")
    assert script.token_texts(4, 6) == [*Speech(1).pieces(4, 5), ""]
    assert script.token_ids(5, 6) == [MESSAGE_END]
    assert len(stated(script)) == 20


@pytest.mark.parametrize("most", [1, 4, 5])
def test_a_limit_cuts(most: int) -> None:
    """Up to the end-of-sequence token itself."""
    script = write_script(Speech(1), 5, Wish(most))
    assert (script.tokens, script.natural, script.finish_reason) == (most, most, "length")


def test_an_end_may_be_ignored_or_put_off() -> None:
    """`ignore_eos` runs to the limit, `min_tokens` at least so far."""
    assert write_script(Speech(1), 5, Wish(100, ignores_end=True)).tokens == 100
    assert write_script(Speech(1), 5, Wish(100, min_tokens=50)).tokens == 51
    assert write_script(Speech(1), None, Wish(100)).finish_reason == "length"


def test_a_fixed_text_ends_where_it_ends() -> None:
    """Neither wish makes a JSON object longer."""
    script = recite(Wish(100, min_tokens=50, ignores_end=True))
    assert (stated(script), script.finish_reason) == (TEXT, "stop")


def test_a_stop_string_ends_the_answer_before_it() -> None:
    """Tokens up to the one that completes it were produced; the text stops short of it."""
    script = recite(Wish(100, stop=("five", "three")))
    assert stated(script) == "one two "
    assert (script.tokens, script.finish_reason, script.stop_reason) == (4, "stop", "three")


def test_a_stop_string_may_be_shown() -> None:
    """`include_stop_str_in_output`."""
    assert stated(recite(Wish(100, stop=("three",), shows_stop=True))) == "one two three"


def test_a_stop_string_that_is_never_stated_changes_nothing() -> None:
    """Nor does one beyond the limit, or before `min_tokens`."""
    assert recite(Wish(100, stop=("seven",))).stop_reason is None
    assert recite(Wish(2, stop=("three",))).finish_reason == "length"
    assert recite(Wish(100, min_tokens=4, stop=("one", "six"))).stop_reason == "six"


def test_text_comes_in_any_portions() -> None:
    """Token by token is the same as at once, stop string or not."""
    for stop in ((), ("three",)):
        script = recite(Wish(100, stop=stop))
        pieces = [script.text(index, index + 1) for index in range(script.tokens)]
        assert "".join(pieces) == stated(script)
