"""What a whole answer says, above all in `usage`: the gateway learns from it what was warm, and charges by it."""

from typing import Any

import pytest

from tests.conformance.subject import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Subject

LONG = 300
"""Words; enough for some blocks of any pod's cache."""


def unary_blocks(tokens: int, block_tokens: int) -> int:
    return tokens // block_tokens * block_tokens


def prompt_and_cached(path: str, answer: Any) -> tuple[int, int]:
    """The prompt's tokens and how many of them were warm, from any API's usage."""
    usage = answer["usage"]
    if path == MESSAGES:
        warm = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + usage["cache_creation_input_tokens"] + warm, warm
    if path == RESPONSES:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


class AnswersContract:
    """Tried on a pod by a test class of its own that inherits it."""

    async def test_chat(self, subject: Subject) -> None:
        """Every field of a chat answer, in its order: usage stands near the end."""
        answer = await subject.ask(CHAT)
        assert list(answer) == [
            *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
            *(
                "prompt_logprobs",
                "prompt_token_ids",
                "prompt_text",
                "kv_transfer_params",
                "ec_transfer_params",
                "metrics",
            ),
        ]
        assert (answer["object"], answer["model"]) == ("chat.completion", subject.model)
        (choice,) = answer["choices"]
        assert list(choice) == [
            *("index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"),
        ]
        message = choice["message"]
        assert list(message) == [
            *("role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"),
        ]
        assert message["role"] == "assistant"
        assert isinstance(message["content"], str)
        assert choice["finish_reason"] == "length"
        details = answer["usage"]["prompt_tokens_details"]
        assert list(details) == ["cached_tokens", "created_cache_tokens", "multimodal_tokens"]

    async def test_completions(self, subject: Subject) -> None:
        """Every field of a completion, in its order."""
        answer = await subject.ask(COMPLETIONS)
        assert list(answer) == [
            *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
            *("kv_transfer_params", "ec_transfer_params", "metrics"),
        ]
        assert (answer["object"], answer["model"]) == ("text_completion", subject.model)
        (choice,) = answer["choices"]
        assert list(choice) == [
            *("index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids"),
            *("prompt_logprobs", "prompt_token_ids", "routed_experts"),
        ]
        assert choice["finish_reason"] == "length"

    async def test_responses(self, subject: Subject) -> None:
        """An answer cut by its limit is incomplete, and says why."""
        answer = await subject.ask(RESPONSES)
        assert answer["id"].startswith("resp_")
        assert (answer["object"], answer["model"]) == ("response", subject.model)
        assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        (message,) = answer["output"]
        assert (message["type"], message["role"]) == ("message", "assistant")
        assert message["content"][0]["type"] == "output_text"

    async def test_messages(self, subject: Subject) -> None:
        """Every field of an Anthropic answer, in its order."""
        answer = await subject.ask(MESSAGES)
        assert list(answer) == ["id", "type", "role", "content", "model", "stop_reason", "usage"]
        assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", subject.model)
        assert [part["type"] for part in answer["content"]] == ["text"]
        assert answer["stop_reason"] == "max_tokens"

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    async def test_usage_adds_up(self, subject: Subject, path: str) -> None:
        """Prompt and completion are the total."""
        usage = (await subject.ask(path, tokens=5))["usage"]
        assert list(usage) == [
            *("prompt_tokens", "total_tokens", "completion_tokens"),
            *("prompt_tokens_details", "completion_tokens_details"),
        ]
        assert usage["completion_tokens"] == 5
        assert usage["total_tokens"] == usage["prompt_tokens"] + 5

    async def test_usage_of_responses_adds_up(self, subject: Subject) -> None:
        """Input and output are the total."""
        usage = (await subject.ask(RESPONSES, tokens=5))["usage"]
        assert list(usage) == [
            *("input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens"),
        ]
        assert usage["output_tokens"] == 5
        assert usage["total_tokens"] == usage["input_tokens"] + 5

    @pytest.mark.parametrize("path", APIS)
    async def test_a_prompt_sent_before_is_warm_but_for_its_last_block(self, subject: Subject, path: str) -> None:
        """Nothing of a new prompt is warm; of a repeated one all whole blocks before its last token."""
        prompt = subject.prompt(LONG)
        tokens, warm = prompt_and_cached(path, await subject.ask(path, prompt))
        assert tokens > LONG
        assert warm < 2 * subject.block_tokens, "at most what the template puts before every prompt"
        again = prompt_and_cached(path, await subject.ask(path, prompt))
        assert again == (tokens, unary_blocks(tokens - 1, subject.block_tokens))

    async def test_apis_share_what_is_warm(self, subject: Subject) -> None:
        """The cache knows tokens, not APIs: a conversation begun in one is warm in the others."""
        prompt = subject.prompt(LONG)
        tokens, _ = prompt_and_cached(CHAT, await subject.ask(CHAT, prompt))
        for path in (RESPONSES, MESSAGES):
            assert prompt_and_cached(path, await subject.ask(path, prompt)) == (
                tokens,
                unary_blocks(tokens - 1, subject.block_tokens),
            )

    async def test_a_second_turn_is_warm_as_far_as_the_first(self, subject: Subject) -> None:
        """A longer conversation over the same beginning finds that beginning."""
        prompt = subject.prompt(LONG)
        first = await subject.ask(CHAT, prompt)
        answer = first["choices"][0]["message"]["content"]
        turns = [("user", prompt), ("assistant", answer), ("user", "And then?")]
        messages = [{"role": role, "content": text} for role, text in turns]
        second = await subject.ask(CHAT, messages=messages)
        seen, _ = prompt_and_cached(CHAT, first)
        _, warm = prompt_and_cached(CHAT, second)
        assert warm % subject.block_tokens == 0
        # Its last tokens open the answer, and a template may close a turn otherwise than it opened the answer.
        assert warm >= unary_blocks(seen - subject.block_tokens, subject.block_tokens)

    async def test_a_salt_separates(self, subject: Subject) -> None:
        """What one tenant warmed is cold for another, and warm for itself."""
        prompt = subject.prompt(LONG)
        await subject.ask(CHAT, prompt)
        _, cold = prompt_and_cached(CHAT, await subject.ask(CHAT, prompt, cache_salt="other"))
        _, warm = prompt_and_cached(CHAT, await subject.ask(CHAT, prompt, cache_salt="other"))
        assert cold == 0
        assert warm > 0

    async def test_an_answer_is_repeated(self, subject: Subject) -> None:
        """Without temperature the same prompt has the same answer, warm or cold."""
        prompt = subject.prompt(LONG)
        texts = [(await subject.ask(COMPLETIONS, prompt, tokens=8))["choices"][0]["text"] for _ in range(3)]
        assert len(set(texts)) == 1

    async def test_several_answers_count_the_prompt_once(self, subject: Subject) -> None:
        """`n` answers are n choices with one prompt."""
        prompt = subject.prompt()
        one = await subject.ask(CHAT, prompt)
        three = await subject.ask(CHAT, prompt, n=3, temperature=0.5)
        assert sorted(choice["index"] for choice in three["choices"]) == [0, 1, 2]
        assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
        assert three["usage"]["completion_tokens"] == 9

    async def test_a_batch_of_prompts_has_one_usage(self, subject: Subject) -> None:
        """Completions take several prompts, as text or as tokens; their choices are numbered through."""
        texts = [subject.prompt(), subject.prompt()]
        single = [(await subject.ask(COMPLETIONS, text))["usage"]["prompt_tokens"] for text in texts]
        batch = subject.request(COMPLETIONS) | {"prompt": texts}
        answer = (await subject.post(COMPLETIONS, batch)).json()
        assert sorted(choice["index"] for choice in answer["choices"]) == [0, 1]
        assert answer["usage"]["prompt_tokens"] == sum(single)
        tokens = subject.request(COMPLETIONS) | {"prompt": [[11, 12, 13], [14, 15]]}
        assert (await subject.post(COMPLETIONS, tokens)).json()["usage"]["prompt_tokens"] == 5

    async def test_the_last_of_equal_fields_counts(self, subject: Subject) -> None:
        """Who rewrites a field must know which of two the pod would read."""
        spelled = b'{"model": "nobody", "max_tokens": 1, "prompt": "Hello", "max_tokens": 4, "model": "%s"}'
        answer = (await subject.post(COMPLETIONS, spelled % subject.model.encode())).json()
        assert answer["usage"]["completion_tokens"] == 4

    async def test_the_newer_limit_counts(self, subject: Subject) -> None:
        """max_completion_tokens beats max_tokens."""
        answer = await subject.ask(CHAT, tokens=1, max_completion_tokens=4)
        assert answer["usage"]["completion_tokens"] == 4

    @pytest.mark.parametrize("path", APIS)
    async def test_unknown_fields_are_ignored(self, subject: Subject, path: str) -> None:
        """A client newer than the pod is served."""
        await subject.ask(path, a_field_of_tomorrow={"a": [1]})

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
    async def test_without_a_model_its_own_answers(self, subject: Subject, path: str) -> None:
        """A pod that serves one model need not be told which."""
        requested = subject.request(path)
        del requested["model"]
        assert (await subject.post(path, requested)).json()["model"] == subject.model
