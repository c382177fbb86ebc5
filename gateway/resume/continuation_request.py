"""How a pod is asked to go on: the client's body with what was said behind its prompt, for what is left of the answer.

Where that cannot be asked for truthfully, but the answer to the same body is the same again, all of it is asked for
(`rehearsal.py`); else it is named why not (`Bar`): a second engine knows neither where a grammar stands, nor how far
the call of a tool has come, nor what only the first had stored.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import msgspec
from msgspec import Struct

from gateway.pipeline.resume_blocker import Bar
from gateway.resume.anthropic import as_chat
from gateway.resume.delivered import READ, UNREADABLE, Said
from gateway.resume.reasoning import Recall, Recalled, recall_of
from gateway.resume.replay import is_same_again
from routing.reading.rewriting import LIMITS
from routing.request import Api

Body = dict[str, Any]

GRAMMARS = (
    *(
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_decoding_backend",
    ),
)

USUAL_COMPLETION = 16
"""Tokens of a completion whose client says nothing of its length, as OpenAI and vLLM have it."""

OPENS_MESSAGE = "assistant"

MOST_UNSEEN = 3
"""Tokens behind the last event: a character has at most four bytes."""


SAME_AGAIN = frozenset({Bar.GRAMMAR, Bar.CALL, Bar.REASONING, Bar.ECHO, Bar.PROMPT, Bar.STOP})
"""What is in the way of going on, but not of asking anew where the answer is the same again."""


RECALLS = frozenset({Api.CHAT, Api.MESSAGES})
"""Whose thoughts can be gone on with by their tokens; in Anthropic's words as the chat that a message is."""


class Asking(Struct, frozen=True):
    """What a pod is sent. `api` is its dialect, which may not be the client's."""

    api: Api
    body: bytes
    left: float = inf
    """Tokens that its client still allows, as far as events tell; all that is missing of an answer without any is that
    it says so."""
    again: str = ""
    """What was said already, and will be said again."""
    is_anew: bool = False
    """All of the answer is asked for, as it was: what is said first is compared with what was said."""
    recall: Recall | None = None
    """What a pod has to be asked first; `body` is then the chat that the lost one was asked."""
    recalled: Recalled | None = None
    """The prompt to go on from, which stands for the body's messages."""
    tells_ids: bool = False
    """The client has asked for token ids."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """None where the messages are the prompt."""
        return self.recalled.ids if self.recalled is not None else ()

    @property
    def is_full(self) -> bool:
        return self.left <= 0

    @property
    def may_be_full(self) -> bool:
        """A token that began a character and did not end it was in no event."""
        return self.left <= MOST_UNSEEN


def ask_on(api: Api, body: bytes, said: Said, sequences: int) -> Asking | Bar:
    """The continuation of a stream that was cut. `body` is what the lost pod was sent."""
    if sequences != 1:
        return Bar.COPIES
    try:
        fields = READ.decode(body)
    except UNREADABLE:
        return Bar.PROMPT
    may_be_anew = is_same_again(api, fields)
    asking = _ask_rest(api, fields, said)
    if may_be_anew and isinstance(asking, Bar) and asking in SAME_AGAIN:
        return Asking(api, body, is_anew=True)
    return _ask_recall(api, fields, said) if asking is Bar.REASONING and api in RECALLS else asking


def _ask_recall(api: Api, fields: Body, said: Said) -> Asking | Bar:
    """The same by its token ids, which are not known yet."""
    chat = fields if api is Api.CHAT else as_chat(fields)
    if chat is None:
        return Bar.PROMPT
    return _bar_to_recall(chat, said) or Asking(Api.CHAT, msgspec.json.encode(chat), recall=recall_of(chat, said))


def ask_recalled(body: bytes, said: Said, recalled: Recalled) -> Asking:
    """The continuation by its token ids, as a chat; `body` was read before, `said` counts what it is in tokens."""
    fields = READ.decode(body)
    tells_ids = bool(fields.get("return_token_ids"))
    left = _lower(Api.CHAT, fields, said, said.tokens)
    fields.pop("prompt_logprobs", None)
    fields["return_token_ids"] = True
    return Asking(Api.CHAT, msgspec.json.encode(fields), left, recalled=recalled, tells_ids=tells_ids)


def _bar_to_recall(fields: Body, said: Said) -> Bar | None:
    """A grammar begins behind the thoughts: who goes on with these begins it as the first engine would have."""
    if not said.thoughts or fields.get("include_reasoning") is False:
        return Bar.REASONING
    if not _is_plain_chat(fields):
        return Bar.PROMPT
    return _barred_by_words(fields, said)


def _is_plain_chat(fields: Body) -> bool:
    """Whether ids can stand for its messages: images cannot, and to what the client began thoughts were not put."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or fields.get("continue_final_message"):
        return False
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    is_text = all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
    return is_text and fields.get("add_generation_prompt") is not False


def _ask_rest(api: Api, fields: Body, said: Said) -> Asking | Bar:
    bar = _barred(fields, said)
    if bar is not None:
        return bar
    left = _lower(api, fields, said, 0 if _said_again(api, said) else said.tokens)
    bar = WRITERS[api](fields, said)
    if bar is not None:
        return bar
    dialect = Api.CHAT if api is Api.MESSAGES else api
    return Asking(dialect, msgspec.json.encode(fields), left, again=_said_again(api, said))


def _barred(fields: Body, said: Said) -> Bar | None:
    if fields.get("previous_response_id") or fields.get("conversation") or fields.get("background"):
        return Bar.CONVERSATION
    if fields.get("use_beam_search"):
        return Bar.COPIES
    if said.has_call or _may_call_next(fields, said):
        return Bar.CALL
    if said.has_thought or fields.get("include_reasoning") is False:  # It may have thought, and told nobody.
        return Bar.REASONING
    return _barred_by_words(fields, said)


def _barred_by_words(fields: Body, said: Said) -> Bar | None:
    if fields.get("echo"):
        return Bar.ECHO
    if _has_grammar(fields) and (said.text or not said.thoughts):
        return Bar.GRAMMAR
    return Bar.STOP if fields.get("include_stop_str_in_output") and _may_be_stopping(fields, said.text) else None


def _may_call_next(fields: Body, said: Said) -> bool:
    """Whether a text was told to its end, and the call of a tool may stand behind it: who goes on with the text has
    nothing more to say of either.
    """
    return (
        said.api is Api.RESPONSES and said.is_over and bool(fields.get("tools")) and fields.get("tool_choice") != "none"
    )


def _has_grammar(fields: Body) -> bool:
    if any(fields.get(name) is not None for name in GRAMMARS):
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
    """Whether the text ends with what a stop string begins with.

    An engine that hides stop strings has kept such an end to itself; one that shows them has not.
    """
    stops = fields.get("stop") or ()
    stops = [stops] if isinstance(stops, str) else stops
    return any(text.endswith(stop[:count]) for stop in stops for count in range(1, len(stop)))


def _lower(api: Api, fields: Body, said: Said, spent: int) -> float:
    """Have limits say what is left of them when so many tokens are spent, and return that.

    No engine says nothing: what is only to tell why the answer ended, and its usage, is asked for one token.
    """
    limits = [name for name in LIMITS[api] if type(fields.get(name)) is int]
    if api is Api.COMPLETIONS and not limits:
        fields["max_tokens"], limits = USUAL_COMPLETION, ["max_tokens"]
    left = min((fields[name] - spent for name in limits), default=inf)
    for name in limits:
        fields[name] = max(1, fields[name] - spent)
    if said.is_over:
        fields |= dict.fromkeys(limits or LIMITS[api][:1], 1)
    if type(fields.get("min_tokens")) is int:
        fields["min_tokens"] = 0 if said.is_over else max(0, fields["min_tokens"] - spent)
    return left


def _said_again(api: Api, said: Said) -> str:
    """Templates lose a message of nothing but blanks: its answer begins anew."""
    return said.text if api is not Api.COMPLETIONS and not said.text.strip() else ""


# -- in the words of each API ------------------------------------------------------------------------------------------


def _chat(fields: Body, said: Said) -> Bar | None:
    fields.pop("prompt_logprobs", None)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return Bar.PROMPT
    if not said.text.strip():
        return None
    if fields.get("continue_final_message"):
        return _go_on_within(messages, said)
    if fields.get("add_generation_prompt") is False:
        return Bar.PROMPT
    message: Body = {"role": OPENS_MESSAGE, "content": said.text}
    fields["messages"] = [*messages, message]
    fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return None


def _go_on_within(messages: list[Any], said: Said) -> Bar | None:
    """The client itself had an answer gone on with: the beginning is its own."""
    last = messages[-1]
    if not isinstance(last, dict) or not isinstance(last.get("content"), str):
        return Bar.PROMPT
    messages[-1] = {**last, "content": last["content"] + said.text}
    return None


def _completions(fields: Body, said: Said) -> Bar | None:
    fields.pop("prompt_logprobs", None)
    prompt = fields.get("prompt")
    if fields.get("suffix"):
        return Bar.PROMPT
    if said.token_ids is not None and said.prompt_ids is not None and not fields.get("stop"):
        fields["prompt"] = [*said.prompt_ids, *said.token_ids]
        return None
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        return Bar.PROMPT if said.text else None
    fields["prompt"] = prompt + said.text
    return None


def _messages(fields: Body, said: Said) -> Bar | None:
    chat = as_chat(fields)
    if chat is None:
        return Bar.PROMPT
    fields.clear()
    fields |= chat
    if said.text.strip() and fields["messages"][-1]["role"] == OPENS_MESSAGE:
        return Bar.PROMPT  # vLLM's Anthropic API ends a prefilled message before it answers: no other API can say so.
    return _chat(fields, said)


def _responses(fields: Body, said: Said) -> Bar | None:
    given = fields.get("input")
    items: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
    begun = said.of("response.output_item.added")
    if begun is None or not said.text.strip():
        return None
    part = {"type": "output_text", "text": said.text, "annotations": []}
    item = {"id": begun["item"].get("id"), "type": "message", "role": OPENS_MESSAGE, "status": "in_progress"}
    fields["input"] = [*items, item | {"content": [part]}]
    return None


WRITERS: dict[Api, Callable[[Body, Said], Bar | None]] = {
    Api.CHAT: _chat,
    Api.COMPLETIONS: _completions,
    Api.MESSAGES: _messages,
    Api.RESPONSES: _responses,
}
