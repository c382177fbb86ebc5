"""The rest of an answer that was asked for by token ids: proven to be that, and shorn of what only proves it."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.resume.choices import ChoicesStitch
from gateway.resume.delivered import Event, Said
from gateway.resume.messages import MessagesStitch
from gateway.resume.reasoning import Recalled
from gateway.resume.splice import Differs, Joint
from routing.request import Api

TELLING = ("content", "reasoning", "reasoning_content", "tool_calls")


class Proof:
    """That one pod goes on from the very tokens that it was sent: read in the events of its chat, one by one."""

    def __init__(self, said: Said, recalled: Recalled) -> None:
        self._recalled = recalled
        self._is_of_prompt = False
        self._is_over = said.is_over
        self._has_spoken = bool(said.text)
        self._thinks = not said.text

    def read(self, event: Event) -> None:
        """Raises `Differs` where its pod has read another prompt, or takes thoughts for text."""
        # An engine that knows nothing of such prompts reads the conversation instead, and answers anew.
        if not self._is_of_prompt and event.get("prompt_token_ids") != [*self._recalled.ids]:
            raise Differs
        self._is_of_prompt = True
        for choice in () if self._is_over else event["choices"]:
            self._read_choice(choice)

    def _read_choice(self, choice: Event) -> None:
        delta = choice.get("delta") or {}
        self._thinks = self._thinks and self._recalled.end not in (choice.get("token_ids") or ())
        if self._thinks and delta.get("content"):
            raise Differs
        if self._has_spoken and (delta.get("reasoning") or delta.get("reasoning_content")):
            raise Differs


class RecalledChat(ChoicesStitch):
    """Of one continuation of a chat."""

    def __init__(self, said: Said, joint: Joint, proof: Proof, *, withholds_usage: bool, tells_ids: bool) -> None:
        """`tells_ids`: the client asked for them itself."""
        super().__init__(Api.CHAT, said, joint, withholds_usage=withholds_usage)
        self._proof = proof
        self._tells_ids = tells_ids

    def event(self, event: Event) -> Iterator[bytes]:
        self._proof.read(event)
        yield from super().event(event)

    def _joined(self, choice: Event) -> Event | None:
        if self._tells_ids:
            return super()._joined(choice)
        delta = choice.get("delta") or {}
        is_mark = not any(delta.get(name) for name in TELLING) and choice.get("finish_reason") is None
        joined = super()._joined({**choice, "token_ids": None} if "token_ids" in choice else choice)
        # Without the ids nobody would have been told of it.
        return None if is_mark and not choice.get("logprobs") else joined


class RecalledMessage(MessagesStitch):
    """Of one continuation of a message, in the chat that it is."""

    def __init__(self, said: Said, joint: Joint, proof: Proof) -> None:
        super().__init__(said, joint)
        self._proof = proof

    def event(self, event: Event) -> Iterator[bytes]:
        self._proof.read(event)
        yield from super().event(event)
