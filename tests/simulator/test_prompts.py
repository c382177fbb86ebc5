"""Prompts: conversations only grow, answers fit onto them, and equal prefixes have equal blocks."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from simulator.language import Speech
from simulator.prompts import (
    IMAGE_TOKENS,
    Chain,
    image_url,
    prompt_of_messages,
    prompt_of_text,
    prompt_of_tokens,
    seed_of,
    text_parts,
)
from simulator.script import Wish, write_script

texts = st.text(max_size=60)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": texts}),
    min_size=1,
    max_size=5,
)


@given(messages, messages)
def test_a_conversation_only_grows(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """More messages add tokens and change none."""
    short = prompt_of_messages(before, 0, open_answer=False).tokens
    assert prompt_of_messages(before + after, 0, open_answer=False).tokens[: len(short)] == short


@given(messages, st.integers(1, 40))
def test_an_answer_fits_onto_its_prompt(before: list[dict[str, Any]], stated: int) -> None:
    """The next turn begins with the prompt's tokens and the answer's, so its blocks are warm."""
    prompt = prompt_of_messages(before, 5)
    script = write_script(Speech(prompt.state), None, Wish(stated))
    answer = {"role": "assistant", "content": script.text(0, stated)}
    following = prompt_of_messages([*before, answer, {"role": "user", "content": "And?"}], 5)
    complete = (*prompt.tokens, *script.token_ids(0, stated))
    assert following.tokens[: len(complete)] == complete


@given(messages, st.integers(1, 20), st.integers(1, 20))
def test_half_an_answer_is_continued(before: list[dict[str, Any]], stated: int, more: int) -> None:
    """With the last message left open, and with token ids, the model goes on where it was."""
    prompt = prompt_of_messages(before, 5)
    complete = Speech(prompt.state).pieces(0, stated + more)
    half = {"role": "assistant", "content": "".join(complete[:stated])}
    resumed = prompt_of_messages([*before, half], 5, open_answer=False, continues=True)
    assert (resumed.answer_state, resumed.answered) == (prompt.state, stated)
    assert Speech(resumed.state).pieces(0, more) == complete[stated:]
    by_ids = prompt_of_tokens(resumed.tokens, 5)
    assert (by_ids.state, by_ids.answer_state, by_ids.answered) == (resumed.state, prompt.state, stated)


def test_bare_texts_and_ids_are_no_conversation() -> None:
    """They go on for ever; ids of a text are that text."""
    text = prompt_of_text("Once upon a time", 1)
    ids = prompt_of_tokens(text.tokens, 1)
    assert (ids.tokens, ids.state, ids.text) == (text.tokens, text.state, "Once upon a time")
    assert not text.is_chat
    assert not ids.is_chat


def test_tools_calls_and_images_are_part_of_the_prompt() -> None:
    """Whatever the model would see makes another prompt."""
    plain = prompt_of_messages([{"role": "user", "content": "Hi"}], 0)
    picture = {"type": "image_url", "image_url": {"url": "http://there/cat.png"}}
    pictured = prompt_of_messages([{"role": "user", "content": [{"type": "text", "text": "Hi"}, picture]}], 0)
    assert len(pictured.tokens) == len(plain.tokens) + IMAGE_TOKENS
    assert prompt_of_messages([{"role": "user", "content": "Hi"}], 0, tools=[{"name": "f"}]).tokens != plain.tokens
    called = {"role": "user", "content": "Hi", "tool_calls": [{"id": "1"}]}
    assert prompt_of_messages([called], 0).tokens != plain.tokens


def test_parts_of_every_api_are_understood() -> None:
    """Text and images in the words of chat, responses and messages."""
    assert text_parts("a") == ["a"]
    assert text_parts([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c", 5]) == ["a", "b", "c"]
    assert text_parts(None) == []
    assert image_url({"type": "image_url", "image_url": {"url": "u"}}) == "u"
    assert image_url({"type": "input_image", "image_url": "u"}) == "u"
    assert image_url({"type": "image", "source": {"type": "base64", "data": "d"}}) == "d"
    assert image_url({"type": "text", "text": "image"}) is None
    assert image_url("image") is None


@given(st.lists(st.integers(0, 2**40), max_size=60), st.integers(0, 60))
def test_a_chain_may_be_read_in_pieces(tokens: list[int], cut: int) -> None:
    """What is hashed later gives the same blocks."""
    complete, grown = Chain(3, tokens, 4), Chain(3, tokens[:cut], 4)
    grown.extend(tokens[cut:])
    assert grown.blocks == complete.blocks
    assert grown.tokens == complete.tokens == len(tokens)
    assert len(complete.blocks) == len(tokens) // 4


def test_a_chain_distinguishes_prefixes() -> None:
    """Equal prefixes are equal up to where they differ; another seed shares nothing."""
    one, other = Chain(0, range(32), 4), Chain(0, [*range(16), *range(100, 116)], 4)
    assert [a == b for a, b in zip(one.blocks, other.blocks, strict=True)] == [True] * 4 + [False] * 4
    assert not set(one.blocks) & set(Chain(seed_of("model", "", "salt"), range(32), 4).blocks)
    assert seed_of("a", "b") != seed_of("b", "a")
