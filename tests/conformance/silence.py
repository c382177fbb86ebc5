"""A pod started without --enable-prompt-tokens-details, vLLM's default: where it does not tell what was warm.

What is not told is unknown, never zero: a correction by it would be wrong.
"""

import pytest

from tests.conformance.subject import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Subject, samples

LONG = 300


class SilenceContract:
    """Tried on a pod by a test class of its own that inherits it."""

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    async def test_a_unary_answer_says_null(self, subject: Subject, path: str) -> None:
        """The field is there, its value is not."""
        assert (await subject.ask(path))["usage"]["prompt_tokens_details"] is None

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    async def test_a_stream_leaves_the_field_out(self, subject: Subject, path: str) -> None:
        """Null in the one form is absent in the other."""
        *_, usage, _ = (await subject.stream(path, stream_options={"include_usage": True})).values()
        assert list(usage["usage"]) == ["prompt_tokens", "total_tokens", "completion_tokens"]

    async def test_messages_count_the_complete_prompt_as_input(self, subject: Subject) -> None:
        """Without cache fields, input_tokens means more than with them."""
        prompt = subject.prompt(LONG)
        for _ in range(2):
            usage = (await subject.ask(MESSAGES, prompt))["usage"]
            assert list(usage) == ["input_tokens", "output_tokens"]
            assert usage["input_tokens"] > LONG

    async def test_streamed_messages_do_so_too(self, subject: Subject) -> None:
        """The last usage says no more than the first."""
        (delta,) = [e for e in (await subject.stream(MESSAGES)).events() if e.name == "message_delta"]
        assert list(delta.value["usage"]) == ["input_tokens", "output_tokens"]

    async def test_responses_report_all_the_same(self, subject: Subject) -> None:
        """This API has the field whatever the pod was told."""
        prompt = subject.prompt(LONG)
        first, second = [(await subject.ask(RESPONSES, prompt))["usage"] for _ in range(2)]
        assert first["input_tokens_details"]["cached_tokens"] < 2 * subject.block_tokens
        assert second["input_tokens_details"]["cached_tokens"] > LONG // 2

    async def test_its_metrics_report_all_the_same(self, subject: Subject) -> None:
        """What no usage says can be learned from the counters, if nobody else asks meanwhile."""
        prompt = subject.prompt(LONG)
        await subject.ask(CHAT, prompt)
        before = (await samples(subject))["prefix_cache_hits_total"][0].value
        await subject.ask(CHAT, prompt)
        assert (await samples(subject))["prefix_cache_hits_total"][0].value > before + LONG // 2
