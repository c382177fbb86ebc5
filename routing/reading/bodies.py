"""The bodies of the APIs as far as decisions need them, and what each of them makes the engine's prompt of.

A field that is not named here is left to the engine. Independent of how faults are worded and of what
is sent on.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, cast

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from xxhash import xxh3_128_hexdigest

from routing.reading.conversation import (
    MEDIA,
    NEXT,
    ChatMessage,
    ContentPart,
    PlainPrompts,
    ResponsesItem,
    open_message,
    write_content,
    write_items,
    write_messages,
    write_prompts,
    write_system,
)
from routing.request import Api

TOOLS = b"\xf7"
"""Before the tools, as the client wrote them. They come first, as in most templates: where one has the system
prompt first, too few cached tokens are predicted, never too many."""
DEFAULT_COMPLETION_TOKENS = 16
"""What OpenAI's completions API makes of a missing `max_tokens`."""

UNSET_VALUES = (b"", b"null", b"false")
"""What of a field is as good as none of it."""
FREE_FORMAT = re.compile(rb'^null$|^\{\s*\}$|"type"\s*:\s*"text"|^\{\s*"verbosity"[^{]*\}$')
"""Of a field that may restrict the answer: one that does not."""
HIDDEN = (b"false",)
TRUE = (b"true",)
FREE_CHOICE = (b"", b"null", b'"auto"', b'"none"')
"""A call of a tool that an answer must have would not fit into the one token of a prefill leg."""

Name = Annotated[str, Meta(max_length=256)]
"""Names are kept and shown (metrics, logs, receipts), so they are bounded."""
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Limit = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""Tokens of an answer. Engines reject 0, except for a completion that echoes its prompt."""
Copies = Annotated[int, Meta(ge=1, le=16_384)]
"""vLLM's own bound on `n`."""


class StreamOptions(Struct):
    include_usage: bool | None = None


class RequestBody(Struct, kw_only=True):
    """What all APIs share."""

    cache_salt: Raw = Raw()
    priority: Raw = Raw()
    kv_transfer_params: Raw = Raw()
    ec_transfer_params: Raw = Raw()
    vllm_xargs: Raw = Raw()
    request_id: Raw = Raw()
    data_parallel_rank: Raw = Raw()
    stream_interval: Raw = Raw()
    model: Name | None = None
    session_id: str | None = None

    tools: ClassVar[Raw] = Raw()
    response_format: ClassVar[Raw] = Raw()
    structured_outputs: ClassVar[Raw] = Raw()
    text: ClassVar[Raw] = Raw()
    """Fields that may restrict the answer: of those APIs that have them."""

    LIMITED_BY: ClassVar[tuple[str, ...]] = ()
    """The fields that say how many tokens an answer may have; the first is added where none is there."""

    @property
    def streams(self) -> bool:
        return False

    @property
    def output_limit(self) -> int | None:
        """How many tokens each answer may have."""
        return None

    def exceeds(self, cap: int) -> list[str]:
        """The fields that must say `cap` for no answer to have more tokens."""
        given = [(name, limit) for name in self.LIMITED_BY if type(limit := getattr(self, name)) is int]
        if not given and (self.output_limit is None or self.output_limit > cap):
            return list(self.LIMITED_BY[:1])
        return [name for name, limit in given if limit > cap]

    @property
    def makes_kv(self) -> bool:
        """Whether it leaves anything in an engine's cache."""
        return not isinstance(self, TokenizeBody)

    @property
    def holds_back(self) -> bool:
        """Whether an engine may tell nothing for long: calls until they are whole, hidden thoughts."""
        return False

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar may restrict the answer: tools or a schema. Read only where one of the fields is there."""
        formats = (self.response_format, self.structured_outputs, self.text)
        return _has_tools(self.tools) or any(each and FREE_FORMAT.search(memoryview(each)) is None for each in formats)

    @property
    def lacks_answer(self) -> bool:
        """Whether it asks for an answer of no tokens where engines reject that."""
        return False

    @property
    def copies(self) -> int:
        """How many answers to each prompt."""
        return 1

    @property
    def min_output(self) -> int:
        """How many tokens each answer has at least, as the client wants it."""
        return 0

    @property
    def outlives_request(self) -> bool:
        """Whether an engine continues it when its client has disconnected."""
        return False

    @property
    def continued_response(self) -> str | None:
        return None

    @property
    def session(self) -> str | None:
        return self.session_id

    @property
    def is_single_engine(self) -> bool:
        """Whether it asks for something that only the engine which does both prefill and answer can give."""
        return False

    @property
    def is_beam_search(self) -> bool:
        """Whether engines keep the answers to their end, since a better one may come up."""
        return False

    @property
    def skips_cache(self) -> bool:
        """Whether engines compute all of the prompt, whatever they have cached."""
        return False

    @property
    def counts_text(self) -> bool:
        """Whether the prompt has the tokens of its text, read only where a field shapes it: it is not cut, and no
        template or document of the client's is in it.
        """
        cut = (getattr(self, name, Raw()) for name in ("truncate_prompt_tokens", "chat_template", "documents"))
        return not any(type(value) is Raw and memoryview(value) not in UNSET_VALUES for value in cut)

    def shaping(self) -> tuple[Raw, ...]:
        """What changes the prompt beside its text, and so separates equal texts."""
        return ()

    def write(self, out: list[bytes]) -> int:
        """Append the canonical prompt. Returns how many prompts it is."""
        return 0


class StreamedBody(RequestBody, kw_only=True):
    """Fields shared by chat and plain completions: a stream has usage only if it is requested."""

    echo: Raw = Raw()
    prompt_logprobs: Raw = Raw()
    use_beam_search: Raw = Raw()
    response_format: Raw = Raw()  # type: ignore[misc]  # where a base class has none, it has an empty one
    structured_outputs: Raw = Raw()  # type: ignore[misc]  # where a base class has none, it has an empty one

    n: Copies | None = None
    best_of: Copies | None = None
    """Of engines before vLLM 0.9, which generate this many responses and return the best `n` of them."""
    min_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | UnsetType | None = UNSET

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def copies(self) -> int:
        return max(self.n or 1, self.best_of or 1)

    @property
    def min_output(self) -> int:
        return self.min_tokens or 0

    @property
    def is_beam_search(self) -> bool:
        return bool(self.use_beam_search) and memoryview(self.use_beam_search) not in UNSET_VALUES

    @property
    def holds_back(self) -> bool:
        return self.is_beam_search

    @property
    def is_single_engine(self) -> bool:
        return self.skips_cache

    @property
    def skips_cache(self) -> bool:
        if not self.echo and not self.prompt_logprobs:
            return False
        return any(memoryview(value) not in UNSET_VALUES for value in (self.echo, self.prompt_logprobs))

    @property
    def lacks_usage(self) -> bool:
        """Whether the engine's stream would tell no usage."""
        options = self.stream_options
        return bool(self.stream) and not (isinstance(options, StreamOptions) and options.include_usage)


class ChatBody(StreamedBody, kw_only=True):
    """Chat completions."""

    messages: list[ChatMessage] | None = None
    tools: Raw = Raw()  # type: ignore[misc]  # where a base class has none, it has an empty one
    include_reasoning: Raw = Raw()
    max_tokens: Limit | UnsetType | None = UNSET
    max_completion_tokens: Limit | UnsetType | None = UNSET
    chat_template: Raw = Raw()
    chat_template_kwargs: Raw = Raw()
    documents: Raw = Raw()
    mm_processor_kwargs: Raw = Raw()
    reasoning_effort: Raw = Raw()
    tool_choice: Raw = Raw()
    truncate_prompt_tokens: Raw = Raw()

    LIMITED_BY = ("max_completion_tokens", "max_tokens")

    @property
    def is_single_engine(self) -> bool:
        return memoryview(self.tool_choice) not in FREE_CHOICE or super().is_single_engine

    @property
    def holds_back(self) -> bool:
        return _has_tools(self.tools) or memoryview(self.include_reasoning) in HIDDEN or self.is_beam_search

    @property
    def output_limit(self) -> int | None:
        return _limit(self.max_completion_tokens, self.max_tokens)

    def shaping(self) -> tuple[Raw, ...]:
        return (
            self.chat_template,
            self.chat_template_kwargs,
            self.documents,
            self.mm_processor_kwargs,
            self.reasoning_effort,
            self.truncate_prompt_tokens,
        )

    def write(self, out: list[bytes]) -> int:
        _write_tools(out, self.tools)
        write_messages(out, self.messages or ())
        return 1


class CompletionsBody(StreamedBody, kw_only=True):
    """Completions of text or token ids, one or many."""

    prompt: PlainPrompts = None
    prompt_embeds: Raw = Raw()
    max_tokens: Count | UnsetType | None = UNSET
    truncate_prompt_tokens: Raw = Raw()
    add_special_tokens: Raw = Raw()

    LIMITED_BY = ("max_tokens",)

    @property
    def lacks_answer(self) -> bool:
        return self.max_tokens == 0 and memoryview(self.echo) not in TRUE

    @property
    def output_limit(self) -> int | None:
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is UNSET else _limit(self.max_tokens)

    def shaping(self) -> tuple[Raw, ...]:
        return self.truncate_prompt_tokens, self.add_special_tokens

    def write(self, out: list[bytes]) -> int:
        if self.prompt_embeds:
            out += (MEDIA, xxh3_128_hexdigest(memoryview(self.prompt_embeds)).encode())
        return write_prompts(out, self.prompt)


class Conversation(Struct):
    id: str | None = None


class ResponsesBody(RequestBody, kw_only=True):
    """OpenAI's responses."""

    input: str | list[ResponsesItem] | None = None
    instructions: str | None = None
    previous_response_id: Name | None = None
    conversation: str | Conversation | None = None
    tools: Raw = Raw()  # type: ignore[misc]  # where a base class has none, it has an empty one
    structured_outputs: Raw = Raw()  # type: ignore[misc]  # where a base class has none, it has an empty one
    text: Raw = Raw()  # type: ignore[misc]  # where a base class has none, it has an empty one
    tool_choice: Raw = Raw()
    max_output_tokens: Limit | UnsetType | None = UNSET
    stream: bool | None = None
    reasoning: Raw = Raw()
    chat_template_kwargs: Raw = Raw()
    mm_processor_kwargs: Raw = Raw()
    previous_input_messages: Raw = Raw()
    include_reasoning: Raw = Raw()
    background: bool | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def outlives_request(self) -> bool:
        return bool(self.background)

    @property
    def is_single_engine(self) -> bool:
        return memoryview(self.tool_choice) not in FREE_CHOICE

    @property
    def holds_back(self) -> bool:
        return _has_tools(self.tools) or memoryview(self.include_reasoning) in HIDDEN

    LIMITED_BY = ("max_output_tokens",)

    @property
    def output_limit(self) -> int | None:
        return _limit(self.max_output_tokens)

    @property
    def continued_response(self) -> str | None:
        return self.previous_response_id or None

    @property
    def session(self) -> str | None:
        named = self.conversation
        return self.session_id or (named.id if isinstance(named, Conversation) else named)

    def shaping(self) -> tuple[Raw, ...]:
        return self.reasoning, self.chat_template_kwargs, self.mm_processor_kwargs, self.previous_input_messages

    def write(self, out: list[bytes]) -> int:
        _write_tools(out, self.tools)
        write_system(out, self.instructions)
        if isinstance(self.input, str):
            write_content(out, open_message("user"), self.input)
        else:
            write_items(out, self.input or ())
        return 1


class MessagesBody(RequestBody, kw_only=True):
    """Anthropic's messages."""

    system: str | list[str | ContentPart] | None = None
    messages: list[ChatMessage] | None = None
    tools: Raw = Raw()  # type: ignore[misc]  # where a base class has none, it has an empty one
    max_tokens: Limit | UnsetType | None = UNSET
    stream: bool | None = None
    thinking: Raw = Raw()
    output_config: Raw = Raw()
    chat_template_kwargs: Raw = Raw()

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    LIMITED_BY = ("max_tokens",)

    @property
    def output_limit(self) -> int | None:
        return _limit(self.max_tokens)

    @property
    def holds_back(self) -> bool:
        return _has_tools(self.tools)

    def shaping(self) -> tuple[Raw, ...]:
        return self.thinking, self.output_config, self.chat_template_kwargs

    def write(self, out: list[bytes]) -> int:
        _write_tools(out, self.tools)
        write_system(out, self.system)
        write_messages(out, self.messages or ())
        return 1


class InputsBody(RequestBody, kw_only=True):
    """Embeddings, pooling, classify: texts, token ids or chats."""

    input: PlainPrompts = None
    data: Raw = Raw()
    """What a plugin of the engine makes a prompt of, in its own words."""
    messages: list[ChatMessage | list[ChatMessage]] | None = None
    chat_template: Raw = Raw()
    chat_template_kwargs: Raw = Raw()
    mm_processor_kwargs: Raw = Raw()
    truncate_prompt_tokens: Raw = Raw()
    add_special_tokens: Raw = Raw()

    def shaping(self) -> tuple[Raw, ...]:
        return (
            self.chat_template,
            self.chat_template_kwargs,
            self.mm_processor_kwargs,
            self.truncate_prompt_tokens,
            self.add_special_tokens,
        )

    def write(self, out: list[bytes]) -> int:
        if self.data:
            out.append(bytes(self.data))
        return write_prompts(out, cast("PlainPrompts", self.messages) or self.input)


class PairsBody(RequestBody, kw_only=True):
    """Rerank and score: one text or many against others."""

    query: PlainPrompts = None
    queries: PlainPrompts = None
    text_1: PlainPrompts = None
    data_1: PlainPrompts = None
    documents: PlainPrompts = None
    items: PlainPrompts = None
    text_2: PlainPrompts = None
    data_2: PlainPrompts = None
    instruction: Raw = Raw()
    chat_template_kwargs: Raw = Raw()

    def shaping(self) -> tuple[Raw, ...]:
        return self.instruction, self.chat_template_kwargs

    def write(self, out: list[bytes]) -> int:
        left = write_prompts(out, self.query or self.queries or self.text_1 or self.data_1)
        out.append(NEXT)
        right = write_prompts(out, self.documents or self.items or self.text_2 or self.data_2)
        return max(left, right)


class TokenizeBody(RequestBody, kw_only=True):
    """Tokenise and detokenise: nothing of it is read but what all share."""


BODIES: dict[Api, type[RequestBody]] = {
    Api.CHAT: ChatBody,
    Api.COMPLETIONS: CompletionsBody,
    Api.RESPONSES: ResponsesBody,
    Api.MESSAGES: MessagesBody,
    Api.EMBEDDINGS: InputsBody,
    Api.POOLING: InputsBody,
    Api.CLASSIFY: InputsBody,
    Api.RERANK: PairsBody,
    Api.SCORE: PairsBody,
    Api.TOKENIZE: TokenizeBody,
    Api.DETOKENIZE: TokenizeBody,
}


def _limit(*fields: int | UnsetType | None) -> int | None:
    """The first limit that was given."""
    for limit in fields:
        if type(limit) is int:
            return limit
    return None


def _has_tools(tools: Raw) -> bool:
    return bool(tools) and tools not in (Raw(b"null"), Raw(b"[]"))


def _write_tools(out: list[bytes], tools: Raw) -> None:
    if _has_tools(tools):
        out += (TOOLS, bytes(tools))
