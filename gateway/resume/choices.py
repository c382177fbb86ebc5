"""The rest of a chat or completions stream: one id, one role, one usage, and not a character twice."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.resume.delivered import Event, Said, is_usage_only
from gateway.resume.replay import Anew, Rehearsal
from gateway.resume.splice import DONE_EVENT, Joint, plain
from gateway.resume.text_sink import hear_choice, hear_choices
from routing.request import Api

OF_THE_FIRST = ("id", "object", "created", "model", "system_fingerprint")
"""Fields that every event of an answer has alike."""

OF_THE_PROMPT = ("prompt_token_ids", "prompt_logprobs")
"""Told once, with the first event; the continuation's prompt is nobody's."""


class ChoicesStitch:
    """Of one continuation."""

    def __init__(self, api: Api, said: Said, joint: Joint, *, withholds_usage: bool) -> None:
        self.api = api
        self.joint = joint
        self._head = {name: said.first[name] for name in OF_THE_FIRST if name in said.first}
        self._has_ended = said.is_over
        self._offset = len(said.text)
        self._withholds_usage = withholds_usage or any(map(is_usage_only, said.events))

    def event(self, event: Event) -> Iterator[bytes]:
        whole = {**{name: value for name, value in event.items() if name not in OF_THE_PROMPT}, **self._head}
        if isinstance(event.get("usage"), dict):
            whole["usage"] = self.joint.usage_told(event["usage"])
        if is_usage_only(event):
            if not self._withholds_usage:
                yield plain(whole)
        elif not self._has_ended and (choices := [self._joined(choice) for choice in event["choices"]]) != [None]:
            yield plain(whole | {"choices": choices})

    def done(self) -> Iterator[bytes]:
        yield DONE_EVENT

    def _joined(self, choice: Event) -> Event | None:
        """The same behind what was said; None where that is nothing."""
        choice = {name: value for name, value in choice.items() if name not in OF_THE_PROMPT}
        was_said, ends = self._cut(choice), choice.get("finish_reason") is not None
        if self.joint.is_silent:
            choice["logprobs"] = None
            choice.pop("token_ids", None)
            if ends:
                choice |= {"finish_reason": "length", "stop_reason": None}
        elif isinstance(choice.get("logprobs"), dict) and choice["logprobs"].get("text_offset"):
            offsets = [at + self._offset for at in choice["logprobs"]["text_offset"]]
            choice["logprobs"] = {**choice["logprobs"], "text_offset": offsets}
        return choice if ends or was_said else None

    def _cut(self, choice: Event) -> bool:
        """Take out what is not to be heard, or was; returns whether anything is left to tell."""
        joint, delta = self.joint, choice.get("delta")
        if delta is None:
            before = choice.get("text") or ""
            choice["text"] = joint.text(before)
            return bool(choice["text"]) or not (before or joint.is_silent)
        delta = choice["delta"] = dict(delta)
        opens = delta.pop("role", None) is not None
        before = delta.get("content")
        if before is not None:
            delta["content"] = joint.text(before)
        if joint.is_silent:
            delta.pop("reasoning", None), delta.pop("reasoning_content", None), delta.pop("tool_calls", None)
        tells = any(delta.get(name) for name in ("content", "reasoning", "reasoning_content", "tool_calls"))
        return tells or not (opens or before or joint.is_silent)


class ChoicesAgain(ChoicesStitch):
    """Of the same answer, asked for once more."""

    def __init__(self, api: Api, said: Said, *, withholds_usage: bool) -> None:
        self._rehearsal = Rehearsal(said.events, hear_choices)
        super().__init__(api, said, Anew(said, self._rehearsal), withholds_usage=withholds_usage)
        self._has_ended = False

    def done(self) -> Iterator[bytes]:
        self._rehearsal.end()
        return super().done()

    def _joined(self, choice: Event) -> Event | None:
        own = {name: value for name, value in choice.items() if name not in OF_THE_PROMPT}
        return hear_choice(own, self._rehearsal)
