"""Prompts that keep a tiny cache moving: conversations that go on, siblings of one system prompt, plain completions.

Drawn from a seed, over all four dialects. Knows nothing of who serves them.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.subject import CHAT, COMPLETIONS, MESSAGES, RESPONSES, STORY

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


@dataclass
class Talker:
    """One conversation."""

    system: str
    path: str
    tools: bool
    messages: list[dict[str, Any]] = field(default_factory=list)


class Load:
    """Bodies to be asked one after another; `received` gives the answer back to the conversation it belongs to."""

    def __init__(self, model: str, seed: int, *, talkers: int = 6, most_messages: int = 7) -> None:
        self._model = model
        self._rng = random.Random(seed)
        self._most = most_messages
        self._systems = [self.text(20, 60) for _ in range(3)]
        self._talkers = [self._new_talker() for _ in range(talkers)]

    def text(self, least: int, most: int) -> str:
        """Words of a story, in an order of their own."""
        words = self._rng.choices(STORY, k=self._rng.randint(least, most))
        return " ".join(words)

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any], Talker | None]]:
        """(path, body, whose turn it is): for ever."""
        while True:
            if self._rng.random() < 0.15:
                shared = self._systems[0] if self._rng.random() < 0.5 else ""
                prompt = f"{shared} {self.text(5, 50)}"
                yield COMPLETIONS, {"prompt": prompt, **self._limited("max_tokens")}, None
                continue
            at = self._rng.randrange(len(self._talkers))
            if len(self._talkers[at].messages) >= self._most or self._rng.random() < 0.05:
                self._talkers[at] = self._new_talker()
            yield self._turn(self._talkers[at])

    def received(self, talker: Talker | None, answer: str) -> None:
        """What a conversation was answered."""
        if talker is not None and talker.messages[-1]["role"] == "user":
            talker.messages.append({"role": "assistant", "content": answer})

    def _turn(self, talker: Talker) -> tuple[str, dict[str, Any], Talker]:
        if not talker.messages or talker.messages[-1]["role"] == "assistant":
            talker.messages.append({"role": "user", "content": self.text(3, 25)})
        messages = [dict(message) for message in talker.messages]
        if talker.path == CHAT:
            complete = [{"role": "system", "content": talker.system}, *messages]
            tools = {"tools": [TOOL], "tool_choice": "none"} if talker.tools else {}
            return CHAT, {"messages": complete, **tools, **self._limited("max_tokens")}, talker
        if talker.path == MESSAGES:
            parts = [
                {**message, "content": [{"type": "text", "text": message["content"]}]}
                if self._rng.random() < 0.3
                else message
                for message in messages
            ]
            return MESSAGES, {"system": talker.system, "messages": parts, **self._limited("max_tokens")}, talker
        return (
            RESPONSES,
            {"instructions": talker.system, "input": messages, **self._limited("max_output_tokens")},
            talker,
        )

    def _limited(self, limit: str) -> dict[str, Any]:
        return {"model": self._model, limit: self._rng.choice((1, 2, 8, 24, 40))}

    def _new_talker(self) -> Talker:
        path = self._rng.choices((CHAT, MESSAGES, RESPONSES), weights=(5, 2, 2))[0]
        return Talker(self._rng.choice(self._systems), path, tools=self._rng.random() < 0.3)
