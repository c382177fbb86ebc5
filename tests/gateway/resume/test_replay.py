"""Answers that think and call, cut at any event again and again: asked the same, another pod says the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.attempt import ResumeBlocker
from gateway.relay.recorder import ResponseRecorder
from gateway.relay.sse import EventScanner, closes_block
from gateway.resume.continuation import Continuation, continuation_of
from gateway.resume.delivered import read_delivered
from gateway.resume.splice import ReplayMismatch, splice_events
from routing.request import Api
from tests.gateway.resume.client_view import read
from tests.gateway.resume.teller import STORY, Event, Teller
from tests.gateway.resume.thinker import PROMPT_TOKENS, TOKENS, WORDS, Thinker

APIS = (Api.CHAT, Api.MESSAGES, Api.RESPONSES)

TOOLS = [{"type": "function", "function": {"name": "weather"}}]

BODY = {
    "model": "tiny",
    "stream": True,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Tell."}],
    "input": "Tell.",
    "max_tokens": 99,
    "response_format": {"type": "json_object"},
    "output_config": {"format": {"type": "json_schema"}},
    "text": {"format": {"type": "json_schema"}},
}
"""Held to a grammar, so that no cut of it can be gone on with by its text."""

ASKED = json.dumps(BODY).encode()


@dataclass
class Heard:
    """What a client makes of a stream: texts by where they stand, and what it was told once."""

    texts: dict[tuple[object, ...], str] = field(default_factory=dict)
    once: list[object] = field(default_factory=list)
    ids: set[object] = field(default_factory=set)
    usage: list[Event] = field(default_factory=list)

    def add(self, *where: object, text: str) -> None:
        self.texts[where] = self.texts.get(where, "") + text


def events_of(told: bytes) -> list[Event]:
    """All of them; numbers that are not in order fail."""
    lines = [line[6:] for line in told.splitlines() if line.startswith(b"data: {")]
    events: list[Event] = list(map(json.loads, lines))
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == [*range(len(numbers))]
    return events


def hear(api: Api, told: bytes) -> Heard:
    heard = Heard(once=["[DONE]"] * told.count(b"[DONE]"))
    add = {Api.CHAT: _chat, Api.MESSAGES: _message}.get(api, _response)
    for event in events_of(told):
        add(event, heard)
    return heard


def _chat(event: Event, heard: Heard) -> None:
    heard.ids.add(event["id"])
    heard.usage += [event["usage"]] if event.get("usage") else []
    for choice in event["choices"]:
        delta = choice["delta"]
        heard.once += [delta["role"]] if "role" in delta else []
        heard.once += [choice["finish_reason"]] if choice["finish_reason"] else []
        for name in ("reasoning", "reasoning_content", "content"):
            heard.add(name, text=delta.get(name) or "")
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            heard.once += [(call["index"], function["name"], call["type"])] if "id" in call else []
            assert ("id" in call) == bool(function.get("name"))
            heard.add(call["index"], text=function.get("arguments") or "")


def _message(event: Event, heard: Heard) -> None:
    heard.usage += [event["usage"]] if "usage" in event else []
    heard.ids |= {event["message"]["id"]} if "message" in event else set()
    delta, block = event.get("delta") or {}, event.get("content_block") or {}
    for name in ("text", "thinking", "partial_json"):
        if name in delta:
            heard.add(event["index"], name, text=delta[name])
            return
    heard.once.append((event["type"], event.get("index"), block.get("type"), block.get("name"), delta.get("type")))


def _response(event: Event, heard: Heard) -> None:
    item, where = event.get("item") or {}, (event.get("output_index"), event.get("item_id") or "")
    if event["type"].endswith(".delta"):
        heard.add(event["type"], *where, text=event["delta"])
        return
    heard.once.append({name: value for name, value in event.items() if name != "sequence_number"})
    heard.ids |= {item.get("id"), item.get("call_id"), *where}


def one_named(heard: Heard, names: Sequence[str]) -> Heard:
    """As if there had been one pod: whose ids those are that were told is not compared here."""
    told = repr((heard.texts, heard.once, heard.usage))
    for name in names:
        told = told.replace(name, "pod")
    return Heard(once=[told])


def lost(events: list[bytes], cut: int) -> list[bytes]:
    """Whose last words have gone on was not lost."""
    return events[: min(cut, len(events) - 1)]


def cut_and_joined(api: Api, cuts: Sequence[int], pods: Sequence[Thinker], reads: int = 10_000) -> bytes:
    """What a client is sent where each pod but the last is lost after so many events."""
    first, *others = pods
    sent = EventScanner(api, ResponseRecorder(0), withholds_usage=False).take(
        b"".join(lost(first.answer(api), cuts[0]))
    )
    shown, passed = sent, sent.count(b"\n\n")
    for number, pod in enumerate(others, 1):
        said = read_delivered(api, shown, passed, withholds_usage=False)
        rest = continuation_of(ASKED, said, sequences=1)
        assert isinstance(rest, Continuation), rest
        assert (rest.request.api, rest.request.body, rest.request.is_replay) == (api, ASKED, True)
        stitch = rest.splicer(withholds_usage=False)
        theirs = b"".join(lost(pod.answer(api), cuts[number]) if number < len(cuts) else pod.answer(api))
        scanner, joined = EventScanner(stitch.api, ResponseRecorder(0), withholds_usage=False), b""
        for at in range(0, len(theirs), reads):
            part = splice_events(stitch, scanner.take(theirs[at : at + reads]))
            assert part is not None
            joined += part
        sent, shown = sent + joined, said.raw + joined
        passed = said.event_count + joined.count(b"\n\n")
    assert not stitch.joint.is_behind
    return sent


def begun(api: Api) -> int:
    """So many events a client has seen at least."""
    return 3 if api is Api.RESPONSES else 1


@pytest.mark.parametrize("pieces", [1, 2, 9])
@pytest.mark.parametrize("api", APIS)
def test_a_cut_after_any_event_is_not_noticed(api: Api, pieces: int) -> None:
    """Thoughts, words, calls and usage are those of one pod, however much the next says in one event."""
    first, other = Thinker("one"), Thinker("two", pieces=pieces)
    told = first.answer(api)
    for cut in range(begun(api), len(told)):
        joined = cut_and_joined(api, [cut], [first, other])
        names = ["one", "two"]
        assert one_named(hear(api, joined), names) == one_named(hear(api, b"".join(told)), names), cut


@pytest.mark.parametrize("api", APIS)
def test_ids_are_those_that_were_reported(api: Api) -> None:
    """What the client knows by a name keeps it; what is new to it has that of the pod that said it."""
    first, other = Thinker("one"), Thinker("two")
    told = first.answer(api)
    for cut in range(begun(api), len(told)):
        if api is Api.MESSAGES and closes_block(told[cut - 1]):
            continue  # It has gone to nobody.
        events = [json.dumps(event) for event in events_of(cut_and_joined(api, [cut], [first, other]))]
        known = {word for event in events[: min(cut, len(events))] for word in event.split('"') if word.endswith("one")}
        for event in events[cut:]:
            theirs = {word.removesuffix("two") + "one" for word in event.split('"') if word.endswith("two")}
            assert not theirs & known, (cut, event)


@given(
    api=st.sampled_from(APIS),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    pieces=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    reads=st.integers(1, 400),
)
def test_any_cuts_in_any_reads_are_not_noticed(api: Api, cuts: list[int], pieces: list[int], reads: int) -> None:
    """Also of pods that are lost while they say again what is known, and while they say more."""
    pods = [Thinker(f"pod{chr(65 + number)}", pieces=some) for number, some in enumerate(pieces[: len(cuts) + 1])]
    cuts = [max(begun(api), cut) for cut in cuts]
    whole, names = b"".join(pods[0].answer(api)), [pod.name for pod in pods]
    joined = cut_and_joined(api, cuts, pods, reads)
    assert one_named(hear(api, joined), names) == one_named(hear(api, whole), names)


@pytest.mark.parametrize("more", [{"echo": True}, {"suffix": "!"}, {"echo": True, "return_token_ids": True}])
def test_a_completion_that_no_text_can_be_continued_with_is_replayed(more: Event) -> None:
    """With its log-probabilities, and what shows nothing yet in between."""
    body = {"prompt": "Tell: ", "max_tokens": 99, "logprobs": 1, "temperature": 0, "stream": True, **more}
    asked = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
    told = Teller(STORY, "one").answer(Api.COMPLETIONS, asked)
    whole = read(Api.COMPLETIONS, b"".join(told))
    for cut in range(1, len(told)):
        said = read_delivered(Api.COMPLETIONS, b"".join(told[:cut]), cut, withholds_usage=False)
        rest = continuation_of(asked, said, sequences=1)
        assert isinstance(rest, Continuation)
        assert rest.request.is_replay
        theirs = b"".join(Teller(STORY, "two").answer(Api.COMPLETIONS, rest.request.body))
        joined = splice_events(rest.splicer(withholds_usage=False), theirs)
        assert joined is not None
        assert read(Api.COMPLETIONS, said.raw + joined) == whole, cut


def test_usage_that_the_client_did_not_ask_for_is_withheld() -> None:
    """It was asked of both pods on our behalf, and is known."""
    said = read_delivered(Api.CHAT, b"".join(Thinker("one").answer(Api.CHAT)[:4]), 4, withholds_usage=True)
    rest = continuation_of(ASKED, said, sequences=1)
    assert isinstance(rest, Continuation)
    stitch = rest.splicer(withholds_usage=True)
    joined = splice_events(stitch, b"".join(Thinker("two").answer(Api.CHAT)))
    assert joined is not None
    assert b"prompt_tokens" not in joined
    assert stitch.joint.usage is not None


@pytest.mark.parametrize(
    "other",
    [
        Thinker("two", thoughts=("Hm", ", täme")),
        Thinker("two", thoughts=("Hm",)),
        Thinker("two", thoughts=()),
        Thinker("two", words=(*WORDS[:-1], "!")),
        Thinker("two", words=WORDS[:-1]),
        Thinker("two", calls=()),
        Thinker("two", calls=(("clock", ("{}",)),)),
        Thinker("two", calls=(("weather", ('{"city": "Bonn"}',)),)),
    ],
)
@pytest.mark.parametrize("api", APIS)
def test_another_answer_is_not_joined(api: Api, other: Thinker) -> None:
    """Nothing of it is passed on from where it differs; cut before that, it is nobody's wrong."""
    first = Thinker("one", calls=(("weather", ('{"city": ', '"Bern"}')),))
    with pytest.raises(ReplayMismatch):
        cut_and_joined(api, [len(first.answer(api)) - 3], [first, other])


@pytest.mark.parametrize("api", APIS)
def test_a_pod_that_says_less_differs(api: Api) -> None:
    """Its end comes before what the client was told has been said again."""
    first = Thinker("one", calls=())
    with pytest.raises(ReplayMismatch):
        cut_and_joined(api, [len(first.answer(api)) - 4], [first, Thinker("two", words=("\n\n",), calls=())])


def told_by(pod: Thinker, after: int) -> bytes:
    """What a client is sent of a message that is given up, by a gateway that reads it event by event."""
    kept = ResponseRecorder(1 << 18)
    scanner = EventScanner(Api.MESSAGES, kept, withholds_usage=False)
    told = b""
    for event in pod.given_up(after):
        if scanner.error is None:
            told += scanner.take(event)
    assert scanner.error is not None
    assert read_delivered(Api.MESSAGES, kept.joined(), told.count(b"\n\n"), withholds_usage=False).raw == told
    return told


@given(afters=st.lists(st.integers(2, 24), min_size=1, max_size=3), pieces=st.integers(1, 4))
def test_a_message_that_is_given_up_again_and_again_goes_on_in_its_block(afters: list[int], pieces: int) -> None:
    """In the middle of thoughts, words and calls: no block is closed before all of it was said."""
    pods = [Thinker(f"pod{chr(65 + number)}") for number in range(len(afters))]
    last = Thinker("podZ", pieces=pieces)
    sent = told_by(pods[0], afters[0])
    for pod, after in [*zip(pods[1:], afters[1:], strict=True), (last, None)]:
        said = read_delivered(Api.MESSAGES, sent, sent.count(b"\n\n"), withholds_usage=False)
        rest = continuation_of(ASKED, said, sequences=1)
        assert isinstance(rest, Continuation)
        more = told_by(pod, after) if after is not None else b"".join(last.answer(Api.MESSAGES))
        joined = splice_events(rest.splicer(withholds_usage=False), more)
        assert joined is not None
        sent = said.raw + joined
    names = [*(pod.name for pod in pods), last.name]
    whole = b"".join(last.answer(Api.MESSAGES))
    assert one_named(hear(Api.MESSAGES, sent), names) == one_named(hear(Api.MESSAGES, whole), names)


def test_thoughts_by_their_old_name_are_thoughts() -> None:
    """Pods of two versions may stand side by side; each new thought is told by the name that its pod gives it."""
    first, other = Thinker("one", old=True), Thinker("two")
    heard = hear(Api.CHAT, cut_and_joined(Api.CHAT, [3], [first, other]))
    thought = heard.texts["reasoning_content",] + heard.texts["reasoning",]
    assert thought == "".join(first.thoughts)


@pytest.mark.parametrize("api", APIS)
def test_usage_is_that_of_the_pod_that_stated_all(api: Api) -> None:
    """It made the whole answer; what it made once more is counted beside it."""
    first, other = Thinker("one"), Thinker("two")
    said = read_delivered(api, b"".join(first.answer(api)[:8]), 8, withholds_usage=False)
    rest = continuation_of(ASKED, said, sequences=1)
    assert isinstance(rest, Continuation)
    stitch = rest.splicer(withholds_usage=False)
    splice_events(stitch, b"".join(other.answer(api)))
    usage = stitch.joint.usage
    assert usage is not None
    assert stitch.joint.whole == usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (PROMPT_TOKENS, TOKENS)
    assert stitch.joint.repeated == said.tokens > 0


@pytest.mark.parametrize(
    ("api", "fields", "is_same"),
    [
        (Api.CHAT, {"temperature": 0}, True),
        (Api.CHAT, {"temperature": 1e-6}, True),
        (Api.CHAT, {"temperature": 0.7, "top_k": 1}, True),
        (Api.CHAT, {"temperature": 0.7, "seed": 7}, True),
        (Api.CHAT, {"temperature": 0.7, "seed": -1}, False),
        (Api.CHAT, {"temperature": 0.7}, False),
        (Api.CHAT, {}, False),
        (Api.MESSAGES, {"temperature": 0.7, "seed": 7}, False),
        (Api.MESSAGES, {"top_k": 1}, True),
        (Api.CHAT, {"temperature": 0, "n": 2}, False),
        (Api.CHAT, {"temperature": 0, "use_beam_search": True}, False),
        (Api.RESPONSES, {"temperature": 0, "previous_response_id": "resp_1"}, False),
    ],
)
def test_only_what_is_the_same_again_is_requested_again(api: Api, fields: dict[str, Any], is_same: bool) -> None:
    """By the client's own words: what a model does by default is its engine's to know."""
    said = read_delivered(api, b"".join(Thinker("one").answer(api)[:6]), 6, withholds_usage=False)
    asked = {name: value for name, value in BODY.items() if name != "temperature"} | fields
    rest = continuation_of(json.dumps(asked).encode(), said, sequences=fields.get("n", 1))
    assert (isinstance(rest, Continuation) and rest.request.is_replay) is is_same


def test_what_can_be_gone_on_with_is() -> None:
    """It costs a prefill, where to ask anew costs the answer."""
    api, body = Api.CHAT, {"model": "tiny", "stream": True, "temperature": 0, "messages": BODY["messages"]}
    said = read_delivered(api, b"".join(Thinker("one", thoughts=()).answer(api)[:4]), 4, withholds_usage=False)
    rest = continuation_of(json.dumps(body).encode(), said, sequences=1)
    assert isinstance(rest, Continuation)
    assert not rest.request.is_replay


def test_what_a_lost_pod_garbled_is_not_compared() -> None:
    """Its events have no shape that the API knows."""
    garbled = b'data: {"choices":[{"index":0,"delta":{"reasoning":{"x":1}}}]}\n\n'
    said = read_delivered(Api.CHAT, garbled, 1, withholds_usage=False)
    assert continuation_of(ASKED, said, sequences=1) is ResumeBlocker.UNSUPPORTED_PROMPT
