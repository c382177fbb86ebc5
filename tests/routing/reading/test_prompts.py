"""Prompts that are no conversation: text, token ids, batches."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading.prompts import NEXT
from routing.request import Api
from tests.routing.reading.wire import canonical, request_of, texts

ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)


def of_prompt(prompt: Any) -> bytes:
    return canonical(Api.COMPLETIONS, {"prompt": prompt})


@given(texts, texts)
def test_a_longer_text_only_appends(text: str, more: str) -> None:
    """A text is its own bytes and nothing else."""
    assert of_prompt(text) == text.encode()
    assert of_prompt(text + more).startswith(of_prompt(text))


@given(ids, ids)
def test_longer_rows_of_ids_only_append(row: list[int], more: list[int]) -> None:
    """Token ids hash by themselves, four bytes each, and never look like text."""
    if row:
        assert of_prompt(row + more).startswith(of_prompt(row))
        assert len(of_prompt(row)) == 1 + 4 * len(row)
        with pytest.raises(UnicodeDecodeError):
            of_prompt(row).decode()


def test_batches_are_told_apart() -> None:
    """Every element counts, where one ends and the next begins too."""
    prompts: list[Any] = [
        *("ab", ["ab", ""], ["a", "b"], ["b", "a"], ["", "ab"], ["a", "b", ""]),
        *([1, 2], [[1], [2]], [[2], [1]], [[1, 2], []], [[1, 2, 3]]),
    ]
    seen = [of_prompt(prompt) for prompt in prompts]
    assert len(set(seen)) == len(seen)


def test_a_batch_of_one_is_its_prompt() -> None:
    """Engines make no difference there."""
    assert of_prompt(["ab"]) == of_prompt("ab")
    assert of_prompt([[1, 2]]) == of_prompt([1, 2])


@given(st.lists(texts, min_size=1, max_size=3))
def test_texts_cannot_imitate_the_next_prompt(batch: list[str]) -> None:
    """The mark between prompts stands exactly between them."""
    assert of_prompt(batch).count(NEXT) == len(batch) - 1


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2], [3]], 3), ([], 1), ("", 1), (None, 1), ([[]], 1)],
)
def test_prompts_are_counted(prompt: Any, count: int) -> None:
    """Each prompt of a batch is a sequence on the engine, n times over."""
    assert request_of(Api.COMPLETIONS, {"model": "m", "prompt": prompt}).sequences == count
    assert request_of(Api.COMPLETIONS, {"model": "m", "prompt": prompt, "n": 3}).sequences == 3 * count


@pytest.mark.parametrize("mixed", [["a", 1], [1, "a"], ["a", [1]], [[1, {"role": "user"}]], [{"role": "user"}, 1]])
def test_mixed_batches_are_left_to_the_engine(mixed: Any) -> None:
    """What is no prompt of any kind is read without a fault of ours."""
    assert request_of(Api.COMPLETIONS, {"model": "m", "prompt": mixed}).model == "m"


def test_embeddings_take_texts_ids_and_chats() -> None:
    """Everything vLLM embeds counts: plain inputs, chats as messages or as input, batches of chats."""
    chat = [{"role": "user", "content": "Hi"}]
    bodies: list[dict[str, Any]] = [
        {"input": "Hi"},
        {"input": [1, 2]},
        {"input": ["Hi", "Ho"]},
        {"messages": chat},
        {"messages": [chat, chat]},
        {"input": [chat]},
    ]
    counts = [request_of(Api.EMBEDDINGS, {"model": "m"} | body).sequences for body in bodies]
    assert counts == [1, 1, 2, 1, 2, 1]
    seen = [canonical(Api.EMBEDDINGS, body) for body in bodies]
    assert all(seen)
    assert seen[3] == seen[5] == b"\xffuser\xfeHi"
    assert canonical(Api.EMBEDDINGS, {"input": chat}) == seen[3]


@pytest.mark.parametrize("api", [Api.RERANK, Api.SCORE])
def test_pairs_count_both_sides(api: Api) -> None:
    """Query and documents both count, in whichever words they are sent."""
    words = [("query", "documents"), ("queries", "documents"), ("queries", "items"), ("text_1", "text_2")]
    for left, right in (*words, ("data_1", "data_2")):
        pairs = list(itertools.product(["a", "b"], [["c", "d"], ["cd"]]))
        seen = {canonical(api, {left: query, right: documents}) for query, documents in pairs}
        assert len(seen) == 4
        assert request_of(api, {"model": "m", left: "a", right: ["c", "d"]}).sequences == 2
    picture = {"content": [{"type": "image_url", "image_url": {"url": "data:,A"}}]}
    assert canonical(api, {"query": picture, "documents": [picture]}) != canonical(api, {"query": picture})
