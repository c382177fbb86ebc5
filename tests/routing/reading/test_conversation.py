"""Conversations as canonical bytes: they only grow, equal means equal, and no text can imitate a mark."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading.conversation import NEXT
from routing.request import Api
from tests.routing.reading import wire
from tests.routing.reading.wire import Json, Said, canonical, request_of, texts

roles = st.sampled_from(["system", "user", "assistant", "tool"])
plain_messages = st.builds(lambda role, content: {"role": role, "content": content}, roles, texts)


def pictures(url: str) -> Json:
    return {"type": "image_url", "image_url": {"url": url}}


chat_parts = st.lists(
    texts.map(lambda text: {"type": "text", "text": text}) | texts.map(pictures), min_size=1, max_size=3
)
chat_messages = st.lists(
    plain_messages
    | wire.sayings.map(wire.chat_message)
    | st.builds(lambda role, content: {"role": role, "content": content}, roles, chat_parts),
    max_size=6,
)


def of_chat(messages: list[Json]) -> bytes:
    return canonical(Api.CHAT, {"messages": messages})


@given(chat_messages, chat_messages)
def test_a_chat_that_goes_on_only_appends(messages: list[Json], more: list[Json]) -> None:
    """The canonical bytes of a conversation begin those of every continuation."""
    assert of_chat(messages + more).startswith(of_chat(messages))


@given(st.lists(wire.sayings, max_size=3), wire.sayings)
def test_responses_items_that_go_on_only_append(past: list[Said], stated: Said) -> None:
    """The same for the items of a responses input, tool calls and their results included."""
    items: list[Json] = [{"role": "user", "content": "Go."}]
    for turn in past:
        items += wire.response_items(turn)
        items.append({"type": "function_call_output", "call_id": "c", "output": "done"})
    longer = [*items, *wire.response_items(stated)]
    assert canonical(Api.RESPONSES, {"input": longer}).startswith(canonical(Api.RESPONSES, {"input": items}))


@given(st.lists(st.tuples(roles, texts), max_size=4), st.lists(st.tuples(roles, texts), max_size=4))
def test_different_conversations_never_look_alike(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> None:
    """No text, whatever it contains, makes one list of messages look like another."""
    messages = [[{"role": role, "content": content} for role, content in each] for each in (one, other)]
    assert (of_chat(messages[0]) == of_chat(messages[1])) == (one == other)


@given(roles, texts)
def test_text_is_the_same_as_one_part_of_text(role: str, text: str) -> None:
    """Clients may send text either way; so may Anthropic's and the responses API's."""
    parts = [{"type": "text", "text": text}]
    assert of_chat([{"role": role, "content": text}]) == of_chat([{"role": role, "content": parts}])
    inputs = [[{"role": role, "content": content}] for content in (text, [{"type": "input_text", "text": text}])]
    assert canonical(Api.RESPONSES, {"input": inputs[0]}) == canonical(Api.RESPONSES, {"input": inputs[1]})
    assert canonical(Api.MESSAGES, {"system": text}) == canonical(Api.MESSAGES, {"system": parts if text else []})


@given(texts, texts)
def test_parts_are_distinguished(one: str, other: str) -> None:
    """Two parts are not their texts run together, and a picture is not its address."""
    both = [{"type": "text", "text": one}, {"type": "text", "text": other}]
    assert of_chat([{"role": "user", "content": both}]) != of_chat([{"role": "user", "content": one + other}])
    assert of_chat([{"role": "user", "content": [pictures(one)]}]) != of_chat([{"role": "user", "content": one}])


MEDIA: list[Json] = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}},
    {"type": "image_url", "image_url": None, "uuid": "picture-1"},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "audio_url", "audio_url": {"url": "https://example.org/a.wav"}},
    {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}},
    {"type": "image_embeds", "image_embeds": "AAAA"},
    {"type": "audio_embeds", "audio_embeds": "AAAA"},
    {"type": "file", "file": {"file_data": "AAAA"}},
    {"type": "input_file", "file_data": "AAAA"},
    {"type": "input_file", "file_id": "file-1"},
    {"type": "input_file", "file_url": "https://example.org/a.pdf"},
    {"type": "input_image", "image_url": "https://example.org/a.png"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    {"type": "image", "image": "AAAA"},
    {"type": "never_heard_of"},
]


def test_media_are_distinguished_by_content() -> None:
    """Every kind of part counts, each by what it holds, and each as large as what it costs the engine."""
    seen = [of_chat([{"role": "user", "content": [part]}]) for part in MEDIA]
    assert len(set(seen)) == len(MEDIA)
    assert all(len(each) > 4096 for each in seen)
    assert seen == [of_chat([{"role": "user", "content": [part]}]) for part in MEDIA]


def test_a_uuid_stands_for_its_picture() -> None:
    """A client may name a picture once and leave it out afterwards: both are the same prompt."""
    with_picture = {"type": "image_url", "image_url": {"url": "data:,A"}, "uuid": "picture-1"}
    left_out = {"type": "image_url", "image_url": None, "uuid": "picture-1"}
    assert of_chat([{"role": "user", "content": [with_picture]}]) == of_chat([{"role": "user", "content": [left_out]}])


def chat_call(arguments: object) -> Json:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a":1}'),
        ('{"a": "\\u00e9"}', '{"a":"é"}'),
        ("", "{}"),
        (" ", "{}"),
        ({"a": 1}, '{"a":1}'),
        ('{"a":1.0}', '{"a": 1.0}'),
        (None, "null"),
    ],
)
def test_tool_arguments_are_the_same_whatever_their_spacing(one: object, other: object) -> None:
    """Clients write the engine's arguments anew: what they mean counts."""
    assert of_chat([chat_call(one)]) == of_chat([chat_call(other)])


@pytest.mark.parametrize("broken", ['{"a":', "NaN", "[" * 5000, '{"a": 1' + "0" * 5000 + "}", "\x00", "1" + "0" * 30])
def test_broken_tool_arguments_count_as_they_stand(broken: str) -> None:
    """Models write what is no JSON at times: the same bytes are then the same call, and nothing is raised."""
    assert broken.encode() in of_chat([chat_call(broken)])


def test_calls_are_distinguished_by_name_and_arguments() -> None:
    """Name and arguments both count; the made-up id of the call does not."""
    calls = [{"name": "a", "arguments": '"bc"'}, {"name": "ab", "arguments": '"c"'}, {"name": "a", "arguments": '"b"'}]
    seen = {of_chat([{"role": "assistant", "tool_calls": [{"id": "x", "function": call}]}]) for call in calls}
    again = {of_chat([{"role": "assistant", "tool_calls": [{"id": "y", "function": call}]}]) for call in calls}
    assert len(seen) == 3
    assert seen == again
    assert of_chat([{"role": "assistant", "tool_calls": [{"type": "custom"}]}]) == b"\xffassistant\xfe"


def test_names_of_speakers_count() -> None:
    """Two users called differently are not one."""
    seen = {of_chat([{"role": "user", "content": "Hi"} | extra]) for extra in ({}, {"name": "ann"}, {"name": "bob"})}
    assert len(seen) == 3


def test_reasoning_of_earlier_turns_is_not_part_of_the_prompt() -> None:
    """Templates leave it out, so a client that sends it back and one that does not have the same prompt."""
    bare = {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    with_thought = {"role": "assistant", "content": [thought, *bare["content"]]}
    assert canonical(Api.MESSAGES, {"messages": [with_thought]}) == canonical(Api.MESSAGES, {"messages": [bare]})
    assert of_chat([bare | {"reasoning": "Hm."}]) == of_chat([bare])
    items = wire.response_items(Said("Yes."))
    with_reasoning = [{"type": "reasoning", "id": "rs_1", "summary": [], "content": []}, *items]
    assert canonical(Api.RESPONSES, {"input": with_reasoning}) == canonical(Api.RESPONSES, {"input": items})


def test_a_tool_result_is_a_message_of_its_own_in_every_dialect() -> None:
    """Chat, messages and responses tell the same story of a call and its result, and get the same bytes."""
    stated = Said("Let me look.", (("look", {"where": "here"}),))
    chat = [
        {"role": "user", "content": "Where?"},
        wire.chat_message(stated),
        {"role": "tool", "tool_call_id": "call-0", "content": "there"},
        {"role": "user", "content": "Thanks."},
    ]
    result = {"type": "tool_result", "tool_use_id": "toolu_0", "content": [{"type": "text", "text": "there"}]}
    anthropic = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": wire.message_blocks(stated)},
        {"role": "user", "content": [result, {"type": "text", "text": "Thanks."}]},
    ]
    items = [
        {"role": "user", "content": "Where?"},
        *wire.response_items(stated),
        {"type": "function_call_output", "call_id": "call_0", "output": "there"},
        {"role": "user", "content": "Thanks."},
    ]
    assert of_chat(chat) == canonical(Api.MESSAGES, {"messages": anthropic})
    assert of_chat(chat) == canonical(Api.RESPONSES, {"input": items})


def test_a_message_of_tool_results_alone_opens_no_empty_user_turn() -> None:
    """Engines send no user message there, and nor do we; an empty message is one all the same."""
    result = {"type": "tool_result", "content": "there"}
    assert canonical(Api.MESSAGES, {"messages": [{"role": "user", "content": [result]}]}) == b"\xfftool\xfethere"
    assert of_chat([{"role": "user", "content": []}]) == of_chat([{"role": "user", "content": None}])
    assert of_chat([{"role": "user", "content": []}]) == b"\xffuser\xfe"


def test_a_billing_header_is_left_out() -> None:
    """A block that differs in every request of one client, and that vLLM drops, would leave nothing warm."""
    header = "x-anthropic-billing-header: cch=12345;"
    system = [{"type": "text", "text": header}, {"type": "text", "text": "Be brief."}]
    bare = canonical(Api.MESSAGES, {"system": "Be brief."})
    assert bare == b"\xffsystem\xfeBe brief."
    assert canonical(Api.MESSAGES, {"system": system}) == bare
    assert canonical(Api.MESSAGES, {"system": header}) == b""
    assert header.encode() in of_chat([{"role": "user", "content": header}])


def test_a_call_joins_the_assistants_message_before_it() -> None:
    """In responses text and calls of one answer are several items: together they are one message."""
    text, call = wire.response_items(Said("Yes.", (("look", {}),)))
    assert canonical(Api.RESPONSES, {"input": [text, call]}) == b"\xffassistant\xfeYes.\xfclook\xfe{}"
    assert canonical(Api.RESPONSES, {"input": [call, call]}) == b"\xffassistant\xfe" + b"\xfclook\xfe{}" * 2
    custom = {"type": "custom_tool_call", "name": "run", "input": "ls -l"}
    assert canonical(Api.RESPONSES, {"input": [custom]}) == b"\xffassistant\xfe\xfcrun\xfels -l"


def test_instructions_are_a_system_message() -> None:
    """What responses calls instructions stands before the input, as the engine puts it."""
    body = {"instructions": "Be brief.", "input": "Hi"}
    assert canonical(Api.RESPONSES, body) == b"\xffsystem\xfeBe brief.\xffuser\xfeHi"
    assert json.loads('"\\u00ff"').encode() not in canonical(Api.RESPONSES, body)


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


def test_batches_are_distinguished() -> None:
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
