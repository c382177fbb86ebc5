"""How an answer is gone on with that another pod began: what the gateway sends then, and what must come of it.

Numerics aside: whether the words are the same as those of an undisturbed run is for tests that choose what they run on.
"""

from typing import Any

import pytest

from tests.conformance.answers import prompt_and_cached
from tests.conformance.subject import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Subject

SAID = "The harbour lay in the fog, and"
"""What the pod that is gone had said."""

GOING_ON: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}


def requested(words: str) -> dict[str, Any]:
    return {"role": "user", "content": words}


def begun(status: str) -> dict[str, Any]:
    """An answer so far, as /v1/responses spells it."""
    part = {"type": "output_text", "text": SAID, "annotations": []}
    return {"type": "message", "role": "assistant", "status": status, "content": [part]}


async def tokens_of(subject: Subject, *turns: dict[str, Any], **fields: Any) -> list[int]:
    """The ids of a conversation."""
    answer = await subject.post("/tokenize", {"model": subject.model, "messages": list(turns), **fields})
    tokens: list[int] = answer.json()["tokens"]
    return tokens


class ContinuingContract:
    """Tried on a pod by a test class of its own that inherits it."""

    async def test_chat_goes_on_in_the_open_message(self, subject: Subject) -> None:
        """The prompt ends with what was said; the stream begins with the role once more, and no whitespace is added."""
        turn = requested(subject.prompt())
        before = await tokens_of(subject, turn)
        open_ids = await tokens_of(subject, turn, {"role": "assistant", "content": SAID}, **GOING_ON)
        request = {"messages": [turn, {"role": "assistant", "content": SAID}], "return_token_ids": True, **GOING_ON}
        first, *rest = (await subject.stream(CHAT, tokens=4, **request)).values()
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert first["prompt_token_ids"] == open_ids
        assert open_ids[: len(before)] == before
        assert [len(value["choices"][0]["token_ids"]) for value in rest[:-1]] == [1] * 4
        stated = await subject.post("/detokenize", {"model": subject.model, "tokens": open_ids[len(before) :]})
        assert stated.json()["prompt"] == SAID

    async def test_both_ways_to_begin_exclude_each_other(self, subject: Subject) -> None:
        """An answer is begun or gone on with."""
        request = subject.request(CHAT, continue_final_message=True)
        assert (await subject.post(CHAT, request)).status == 400

    @pytest.mark.parametrize("status", ["in_progress", "incomplete"])
    async def test_responses_go_on_with_an_item_that_is_not_complete(self, subject: Subject, status: str) -> None:
        """The same prompt as chat's; all events of a response come again."""
        turn = requested(subject.prompt())
        open_ids = await tokens_of(subject, turn, {"role": "assistant", "content": SAID}, **GOING_ON)
        events = (await subject.stream(RESPONSES, tokens=2, input=[turn, begun(status)])).events()
        assert [event.name for event in events[:2]] == ["response.created", "response.in_progress"]
        assert events[-1].value["response"]["usage"]["input_tokens"] == len(open_ids)

    async def test_responses_open_a_turn_behind_a_complete_item(self, subject: Subject) -> None:
        """Then it is a conversation like any other."""
        turn, stated = requested(subject.prompt()), {"role": "assistant", "content": SAID}
        answer = await subject.ask(RESPONSES, input=[turn, begun("completed")])
        assert answer["usage"]["input_tokens"] == len(await tokens_of(subject, turn, stated))

    async def test_messages_do_not_go_on(self, subject: Subject) -> None:
        """A last message of the assistant's is a turn that is over, unlike at Anthropic."""
        turn, stated = requested(subject.prompt()), {"role": "assistant", "content": SAID}
        answer = await subject.ask(MESSAGES, messages=[turn, stated], **GOING_ON)
        assert prompt_and_cached(MESSAGES, answer)[0] == len(await tokens_of(subject, turn, stated))

    @pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
    async def test_forwarded_ids_stand_for_the_conversation(self, subject: Subject, path: str) -> None:
        """What a prefilling pod tells a decoding one: the prompt is these ids, whatever the messages say."""
        stated = {"role": "assistant", "content": SAID}
        ids = await tokens_of(subject, requested(subject.prompt()), stated, **GOING_ON)
        answer = await subject.ask(path, kv_transfer_params={"prompt_token_ids": ids})
        assert prompt_and_cached(path, answer)[0] == len(ids)

    @pytest.mark.parametrize("ids", [[], ["1"], [-1], [True], 7])
    async def test_forwarded_ids_must_be_ids(self, subject: Subject, ids: Any) -> None:
        """Anything else is the client's fault."""
        request = subject.request(CHAT, kv_transfer_params={"prompt_token_ids": ids})
        assert (await subject.post(CHAT, request)).status == 400

    async def test_a_completion_goes_on_from_ids(self, subject: Subject) -> None:
        """Prompt and answer are told as ids where that is asked for, and together they are a prompt."""
        *values, done = (await subject.stream(COMPLETIONS, tokens=4, ignore_eos=True, return_token_ids=True)).values()
        assert done is None
        prompt_ids = values[0]["choices"][0]["prompt_token_ids"]
        assert all(value["choices"][0]["prompt_token_ids"] is None for value in values[1:])
        ids = [each for value in values for each in value["choices"][0]["token_ids"]]
        assert len(ids) == 4
        answer = await subject.ask(COMPLETIONS, prompt=prompt_ids + ids, return_token_ids=True)
        assert answer["choices"][0]["prompt_token_ids"] == prompt_ids + ids

    async def test_no_answer_may_be_longer_at_least_than_at_most(self, subject: Subject) -> None:
        """Who asks for the rest of an answer lowers both bounds."""
        request = subject.request(CHAT, tokens=3, min_tokens=4)
        rejected = await subject.post(CHAT, request)
        assert rejected.status == 400
        assert rejected.json()["error"]["message"] == "min_tokens must be less than or equal to max_tokens=3, got 4."
