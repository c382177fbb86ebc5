"""A pod without sockets: it tells the same story to whoever asks, and goes on from wherever the prompt has come to.

What it sends is worded as vLLM words it in each API. A token is a piece of the story; some show nothing yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from routing.request import Api

Event = dict[str, Any]

STORY = ("Once", " upon", " a", "", " tïme", "\n", "\n", "there was ", "", "", "🙂", " a", ' "quoted"', " \\word", ".")
"""Half of a character shows nothing: its token has an empty text, and the last half shows all of it."""

PLAIN_STORY = tuple(piece for piece in STORY if piece)
"""For APIs that tell nothing of such a token."""

STORIES = {Api.MESSAGES: PLAIN_STORY, Api.RESPONSES: PLAIN_STORY}

PROMPT_TOKENS = 7

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Tale:
    """What is still to be told: pieces, and why it ends."""

    pieces: tuple[str, ...]
    reason: str
    reported: int
    """Tokens before."""

    @property
    def prompt_tokens(self) -> int:
        return PROMPT_TOKENS + self.reported

    @property
    def tokens(self) -> int:
        """Of what is still to be told; an end of its own is one."""
        return len(self.pieces) + (self.reason == "stop")

    def ended(self) -> list[tuple[str, str | None]]:
        """Pieces, the last one with why."""
        pieces = (*self.pieces, "") if self.reason == "stop" else self.pieces
        return [(piece, self.reason if at == len(pieces) - 1 else None) for at, piece in enumerate(pieces)]


@dataclass(frozen=True)
class Teller:
    """One pod. `name` stands in its ids, so that pods can be told apart."""

    story: tuple[str, ...]
    name: str

    def answer(self, api: Api, body: bytes) -> list[bytes]:
        """The events of a stream."""
        requested = json.loads(body)
        tell = {Api.CHAT: self._chat, Api.COMPLETIONS: self._completions, Api.MESSAGES: self._messages}
        return [*tell.get(api, self._responses)(requested)]

    def _tale(self, stated: str, limit: int | None) -> Tale:
        """The rest of the story behind what was said; what shows nothing belongs to what it shows with."""
        reported = 0
        while "".join(self.story[:reported]) != stated:
            reported += 1
            assert reported <= len(self.story), f"nobody has said {stated!r}"
        return self._tale_from(reported, limit)

    def _tale_from(self, reported: int, limit: int | None) -> Tale:
        rest = self.story[reported:]
        if limit is not None and limit <= len(rest):
            return Tale(rest[:limit], "length", reported)
        return Tale(rest, "stop", reported)

    def _chat(self, requested: Event) -> Iterator[bytes]:
        last = requested["messages"][-1]
        stated = last["content"] if requested.get("continue_final_message") else ""
        assert not stated or (last["role"] == "assistant" and requested["add_generation_prompt"] is False)
        tale = self._tale(stated, requested.get("max_completion_tokens", requested.get("max_tokens")))
        head = {"id": f"chatcmpl-{self.name}", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
        opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        yield plain(head | {"choices": [opening], "prompt_token_ids": None})
        for piece, reason in tale.ended():
            delta = {"index": 0, "delta": {"content": piece}, "logprobs": None, "finish_reason": reason}
            yield plain(head | {"choices": [delta | {"stop_reason": None, "token_ids": None}]})
        if (requested.get("stream_options") or {}).get("include_usage"):
            yield plain(head | {"choices": [], "usage": _usage(tale)})
        yield DONE

    def _completions(self, requested: Event) -> Iterator[bytes]:
        prompt, limit = requested["prompt"], requested.get("max_tokens", 16)
        by_ids = isinstance(prompt, list)
        if by_ids:
            reported = len(prompt) - PROMPT_TOKENS
            assert prompt == [*range(PROMPT_TOKENS), *range(100, 100 + reported)]
            assert not reported or self.story[reported - 1], "half a character stands at the end of the prompt"
        tale = self._tale_from(reported, limit) if by_ids else self._tale(prompt.removeprefix("Tell: "), limit)
        head = {"id": f"cmpl-{self.name}", "object": "text_completion", "created": 1, "model": "tiny"}
        at = 0
        for number, (piece, reason) in enumerate(tale.ended()):
            logprobs = {"text_offset": [at], "tokens": [piece]} if requested.get("logprobs") else None
            choice: Event = {"index": 0, "text": piece, "logprobs": logprobs, "finish_reason": reason}
            if requested.get("return_token_ids"):
                choice["token_ids"] = [100 + tale.reported + number]
                choice["prompt_token_ids"] = None if number else [*range(PROMPT_TOKENS)]
            yield plain(head | {"choices": [choice]})
            at += len(piece)
        if (requested.get("stream_options") or {}).get("include_usage"):
            yield plain(head | {"choices": [], "usage": _usage(tale)})
        yield DONE

    def _messages(self, requested: Event) -> Iterator[bytes]:
        tale = self._tale("", requested["max_tokens"])
        usage = {"input_tokens": tale.prompt_tokens, "output_tokens": 0}
        message = {
            "id": f"chatcmpl-{self.name}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "tiny",
        }
        yield named({"type": "message_start", "message": message | {"usage": usage}})
        yield named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        for piece in tale.pieces:
            delta = {"type": "text_delta", "text": piece}
            yield named({"type": "content_block_delta", "index": 0, "delta": delta})
        yield named({"type": "content_block_stop", "index": 0})
        stop = {"stop_reason": "max_tokens" if tale.reason == "length" else "end_turn", "stop_sequence": None}
        yield named({"type": "message_delta", "delta": stop, "usage": usage | {"output_tokens": tale.tokens}})
        yield named({"type": "message_stop"})

    def _responses(self, requested: Event) -> Iterator[bytes]:
        given = requested["input"]
        last = given[-1] if isinstance(given, list) else {}
        stated = last["content"][0]["text"] if last.get("status") == "in_progress" else ""
        tale = self._tale(stated, requested.get("max_output_tokens"))
        for number, event in enumerate(self._response_events(tale)):
            yield named({**event, "sequence_number": number})

    def _response_events(self, tale: Tale) -> Iterator[Event]:
        base = {"id": f"resp_{self.name}", "created_at": 1, "object": "response", "model": "tiny"}
        begun = base | {"status": "in_progress", "output": [], "usage": None}
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        item = {
            "id": f"msg_{self.name}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        where = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        part: Event = {"type": "output_text", "annotations": [], "logprobs": None}
        yield {"type": "response.content_part.added", **where, "part": part | {"text": ""}}
        for piece in filter(None, tale.pieces):
            yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
        text = "".join(tale.pieces)
        yield {"type": "response.output_text.done", **where, "text": text, "logprobs": []}
        yield {"type": "response.content_part.done", **where, "part": part | {"text": text}}
        complete = item | {"status": "completed", "content": [part | {"text": text}]}
        yield {"type": "response.output_item.done", "output_index": 0, "item": complete}
        yield {"type": "response.completed", "response": base | _response_end(tale, complete)}


def plain(event: Event) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named(event: Event) -> bytes:
    return f"event: {event['type']}\n".encode() + plain(event)


def _usage(tale: Tale) -> Event:
    return {
        "prompt_tokens": tale.prompt_tokens,
        "total_tokens": tale.prompt_tokens + tale.tokens,
        "completion_tokens": tale.tokens,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def _response_end(tale: Tale, item: Event) -> Event:
    is_cut = tale.reason == "length"
    usage = {
        "input_tokens": tale.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": tale.tokens,
        "total_tokens": tale.prompt_tokens + tale.tokens,
    }
    return {
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": [item],
        "usage": usage,
    }
