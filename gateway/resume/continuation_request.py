"""The request for the rest of an answer: the client's body with the delivered output behind its prompt.

Where such a request would not continue the same answer, but the same body is answered the same again, all of it is
requested (`replay.py`). Else a reason says why the answer cannot be resumed: a second engine knows neither the state of
a grammar, nor how far a tool call has come, nor what only the first engine had stored.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import msgspec
from msgspec import Struct

from gateway.pipeline.attempt import ResumeBlocker
from gateway.resume.anthropic import chat_from_messages
from gateway.resume.delivered import JSON_OBJECT, UNREADABLE, DeliveredOutput
from gateway.resume.replay import is_deterministic
from gateway.resume.token_recovery import RecoveredTokens, TokenRecovery, recovery_calls
from routing.reading.rewriting import LIMITS
from routing.request import Api

Body = dict[str, Any]

GRAMMAR_FIELDS = (
    *(
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_decoding_backend",
    ),
)

DEFAULT_COMPLETION_TOKENS = 16
"""Tokens of a completion without `max_tokens`, the default of OpenAI and vLLM."""

ASSISTANT = "assistant"

MAX_UNSEEN_TOKENS = 3
"""Tokens that may be in no event yet: a character has at most four bytes."""


REPLAYABLE = frozenset(
    {
        ResumeBlocker.STRUCTURED_OUTPUT,
        ResumeBlocker.TOOL_CALL,
        ResumeBlocker.REASONING,
        ResumeBlocker.ECHO,
        ResumeBlocker.UNSUPPORTED_PROMPT,
        ResumeBlocker.STOP_STRING,
    }
)
"""Reasons against a continuation that do not stand against a replay."""


RECOVERS_TOKENS = frozenset({Api.CHAT, Api.MESSAGES})
"""APIs whose reasoning can be continued by its token ids; Anthropic's as the chat that a message is."""


class ContinuationRequest(Struct, frozen=True):
    """The request that a pod is sent. `api` is its API, which may not be the client's."""

    api: Api
    body: bytes
    tokens_left: float = inf
    """Tokens that the client's limits leave, as far as events show; at 0 only the end of the answer is missing."""
    repeated_text: str = ""
    """Delivered text that the continuation will repeat."""
    is_replay: bool = False
    """The whole answer is requested again, and compared with what was delivered."""
    recovery: TokenRecovery | None = None
    """The calls that have to recover token ids first; `body` is then the chat that the lost pod was sent."""
    recovered: RecoveredTokens | None = None
    """The prompt to continue, which replaces the body's messages."""
    wants_token_ids: bool = False
    """The client has requested token ids."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The prompt as token ids; empty where the messages are the prompt."""
        return self.recovered.ids if self.recovered is not None else ()

    @property
    def is_exhausted(self) -> bool:
        """Whether the client's limits leave no token."""
        return self.tokens_left <= 0

    @property
    def may_be_exhausted(self) -> bool:
        """Whether they may leave none: tokens that did not end a character were in no event."""
        return self.tokens_left <= MAX_UNSEEN_TOKENS


def build_request(
    api: Api, body: bytes, delivered: DeliveredOutput, sequences: int
) -> ContinuationRequest | ResumeBlocker:
    """Return the request that continues a stream which was cut. `body` is what the lost pod was sent."""
    if sequences != 1:
        return ResumeBlocker.MULTIPLE_CHOICES
    try:
        fields = JSON_OBJECT.decode(body)
    except UNREADABLE:
        return ResumeBlocker.UNSUPPORTED_PROMPT
    may_be_replayed = is_deterministic(api, fields)
    follow_up = _continuation(api, fields, delivered)
    if may_be_replayed and isinstance(follow_up, ResumeBlocker) and follow_up in REPLAYABLE:
        return ContinuationRequest(api, body, is_replay=True)
    return (
        _continuation_by_tokens(api, fields, delivered)
        if follow_up is ResumeBlocker.REASONING and api in RECOVERS_TOKENS
        else follow_up
    )


def _continuation_by_tokens(api: Api, fields: Body, delivered: DeliveredOutput) -> ContinuationRequest | ResumeBlocker:
    """Return the continuation by its token ids, which have to be recovered first."""
    chat = fields if api is Api.CHAT else chat_from_messages(fields)
    if chat is None:
        return ResumeBlocker.UNSUPPORTED_PROMPT
    return _recovery_blocker(chat, delivered) or ContinuationRequest(
        Api.CHAT, msgspec.json.encode(chat), recovery=recovery_calls(chat, delivered)
    )


def build_recovered_request(body: bytes, delivered: DeliveredOutput, recalled: RecoveredTokens) -> ContinuationRequest:
    """Return the continuation by its token ids, as a chat. `delivered` has the exact count of tokens."""
    fields = JSON_OBJECT.decode(body)
    returns_ids = bool(fields.get("return_token_ids"))
    left = _lower_limits(Api.CHAT, fields, delivered, delivered.tokens)
    fields.pop("prompt_logprobs", None)
    fields["return_token_ids"] = True
    return ContinuationRequest(
        Api.CHAT, msgspec.json.encode(fields), left, recovered=recalled, wants_token_ids=returns_ids
    )


def _recovery_blocker(fields: Body, delivered: DeliveredOutput) -> ResumeBlocker | None:
    """Return what stands against it. A grammar does not: it begins behind the reasoning, in a second engine as well."""
    if not delivered.reasoning or fields.get("include_reasoning") is False:
        return ResumeBlocker.REASONING
    if not _is_plain_chat(fields):
        return ResumeBlocker.UNSUPPORTED_PROMPT
    return _blocker_by_fields(fields, delivered)


def _is_plain_chat(fields: Body) -> bool:
    """Whether ids can replace its messages: not images, and not an answer that the client itself has begun."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or fields.get("continue_final_message"):
        return False
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    is_text = all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
    return is_text and fields.get("add_generation_prompt") is not False


def _continuation(api: Api, fields: Body, delivered: DeliveredOutput) -> ContinuationRequest | ResumeBlocker:
    blocker = _blocker(fields, delivered)
    if blocker is not None:
        return blocker
    left = _lower_limits(api, fields, delivered, 0 if _repeated_text(api, delivered) else delivered.tokens)
    blocker = WRITERS[api](fields, delivered)
    if blocker is not None:
        return blocker
    dialect = Api.CHAT if api is Api.MESSAGES else api
    return ContinuationRequest(dialect, msgspec.json.encode(fields), left, repeated_text=_repeated_text(api, delivered))


def _blocker(fields: Body, delivered: DeliveredOutput) -> ResumeBlocker | None:
    if fields.get("previous_response_id") or fields.get("conversation") or fields.get("background"):
        return ResumeBlocker.STORED_RESPONSE
    if fields.get("use_beam_search"):
        return ResumeBlocker.MULTIPLE_CHOICES
    if delivered.has_call or _may_call_next(fields, delivered):
        return ResumeBlocker.TOOL_CALL
    if delivered.has_reasoning or fields.get("include_reasoning") is False:  # It may have reasoned without an event.
        return ResumeBlocker.REASONING
    return _blocker_by_fields(fields, delivered)


def _blocker_by_fields(fields: Body, delivered: DeliveredOutput) -> ResumeBlocker | None:
    if fields.get("echo"):
        return ResumeBlocker.ECHO
    if _has_grammar(fields) and (delivered.text or not delivered.reasoning):
        return ResumeBlocker.STRUCTURED_OUTPUT
    return (
        ResumeBlocker.STOP_STRING
        if fields.get("include_stop_str_in_output") and _may_be_stopping(fields, delivered.text)
        else None
    )


def _may_call_next(fields: Body, delivered: DeliveredOutput) -> bool:
    """Whether the text was delivered to its end, and a tool call may follow: a continuation of the text would end at
    once, without the call.
    """
    return (
        delivered.api is Api.RESPONSES
        and delivered.is_over
        and bool(fields.get("tools"))
        and fields.get("tool_choice") != "none"
    )


def _has_grammar(fields: Body) -> bool:
    if any(fields.get(name) is not None for name in GRAMMAR_FIELDS):
        return True
    wanted = [fields.get("response_format"), _at(fields, "text", "format"), _at(fields, "output_config", "format")]
    if any(isinstance(form, dict) and form.get("type") != "text" for form in wanted):
        return True
    choice = fields.get("tool_choice")
    return choice == "required" or (isinstance(choice, dict) and choice.get("type") not in {"auto", "none"})


def _at(fields: Body, outer: str, inner: str) -> object:
    held = fields.get(outer)
    return held.get(inner) if isinstance(held, dict) else None


def _may_be_stopping(fields: Body, text: str) -> bool:
    """Whether the text ends with the beginning of a stop string.

    An engine that hides stop strings has held such an end back; one that includes them has not.
    """
    stops = fields.get("stop") or ()
    stops = [stops] if isinstance(stops, str) else stops
    return any(text.endswith(stop[:count]) for stop in stops for count in range(1, len(stop)))


def _lower_limits(api: Api, fields: Body, delivered: DeliveredOutput, spent: int) -> float:
    """Lower the limits of a body by the tokens spent, and return the tokens left.

    No engine generates none: a request that is only to report finish reason and usage asks for one token.
    """
    limits = [name for name in LIMITS[api] if type(fields.get(name)) is int]
    if api is Api.COMPLETIONS and not limits:
        fields["max_tokens"], limits = DEFAULT_COMPLETION_TOKENS, ["max_tokens"]
    left = min((fields[name] - spent for name in limits), default=inf)
    for name in limits:
        fields[name] = max(1, fields[name] - spent)
    if delivered.is_over:
        fields |= dict.fromkeys(limits or LIMITS[api][:1], 1)
    if type(fields.get("min_tokens")) is int:
        fields["min_tokens"] = 0 if delivered.is_over else max(0, fields["min_tokens"] - spent)
    return left


def _repeated_text(api: Api, delivered: DeliveredOutput) -> str:
    """Return the text that is repeated: chat templates drop a message of blanks, so its answer begins again."""
    return delivered.text if api is not Api.COMPLETIONS and not delivered.text.strip() else ""


# -- by API ------------------------------------------------------------------------------------------------------------


def _chat(fields: Body, delivered: DeliveredOutput) -> ResumeBlocker | None:
    fields.pop("prompt_logprobs", None)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return ResumeBlocker.UNSUPPORTED_PROMPT
    if not delivered.text.strip():
        return None
    if fields.get("continue_final_message"):
        return _continue_last(messages, delivered)
    if fields.get("add_generation_prompt") is False:
        return ResumeBlocker.UNSUPPORTED_PROMPT
    message: Body = {"role": ASSISTANT, "content": delivered.text}
    fields["messages"] = [*messages, message]
    fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return None


def _continue_last(messages: list[Any], delivered: DeliveredOutput) -> ResumeBlocker | None:
    """Continue an answer whose beginning the client has sent."""
    last = messages[-1]
    if not isinstance(last, dict) or not isinstance(last.get("content"), str):
        return ResumeBlocker.UNSUPPORTED_PROMPT
    messages[-1] = {**last, "content": last["content"] + delivered.text}
    return None


def _completions(fields: Body, delivered: DeliveredOutput) -> ResumeBlocker | None:
    fields.pop("prompt_logprobs", None)
    prompt = fields.get("prompt")
    if fields.get("suffix"):
        return ResumeBlocker.UNSUPPORTED_PROMPT
    if delivered.token_ids is not None and delivered.prompt_ids is not None and not fields.get("stop"):
        fields["prompt"] = [*delivered.prompt_ids, *delivered.token_ids]
        return None
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        return ResumeBlocker.UNSUPPORTED_PROMPT if delivered.text else None
    fields["prompt"] = prompt + delivered.text
    return None


def _messages(fields: Body, delivered: DeliveredOutput) -> ResumeBlocker | None:
    chat = chat_from_messages(fields)
    if chat is None:
        return ResumeBlocker.UNSUPPORTED_PROMPT
    fields.clear()
    fields |= chat
    if delivered.text.strip() and fields["messages"][-1]["role"] == ASSISTANT:
        return (
            ResumeBlocker.UNSUPPORTED_PROMPT
        )  # vLLM's Anthropic API ends a prefilled message before it answers, which no other API can express.
    return _chat(fields, delivered)


def _responses(fields: Body, delivered: DeliveredOutput) -> ResumeBlocker | None:
    given = fields.get("input")
    items: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
    begun = delivered.last_of_type("response.output_item.added")
    if begun is None or not delivered.text.strip():
        return None
    part = {"type": "output_text", "text": delivered.text, "annotations": []}
    item = {"id": begun["item"].get("id"), "type": "message", "role": ASSISTANT, "status": "in_progress"}
    fields["input"] = [*items, item | {"content": [part]}]
    return None


WRITERS: dict[Api, Callable[[Body, DeliveredOutput], ResumeBlocker | None]] = {
    Api.CHAT: _chat,
    Api.COMPLETIONS: _completions,
    Api.MESSAGES: _messages,
    Api.RESPONSES: _responses,
}
