"""Pods whose answers are JSON and nothing that their API has: no account, learned cost or client may suffer by it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.ending import last_events
from routing.rejection import Reason
from routing.request import Api, Usage
from tenancy.tenants import Quota
from tests.attacks.test_limits import LIMIT, Stage, key
from tests.gateway.http.rig import CHAT_PATH, a_chat
from tests.gateway.http.scripted import until
from tests.gateway.http.wire import answer_bytes, chat_answer


@pytest.mark.parametrize("count", [1 << 31, 1 << 63, 10**400])
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", "cached_tokens"])
async def test_usage_that_no_engine_can_have_is_no_usage(name: str, count: int) -> None:
    """The answer is delivered; its tenant pays what was reserved, and is not held to that number for ages."""
    stage = Stage(alice=Quota(output_tokens_per_min=LIMIT))
    usage: dict[str, Any] = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    usage |= {"prompt_tokens_details": {name: count}} if name == "cached_tokens" else {name: count}
    async with stage.rig() as rig:
        rig.pod.plays([answer_bytes(chat_answer() | {"usage": usage})])
        for _ in range(2):
            assert (await rig.ask(CHAT_PATH, a_chat(max_tokens=10), **key("alice"))).status == 200
        await until(lambda: len(rig.outcomes) == 2)
        assert [outcome.usage for outcome in rig.outcomes] == [None, None]


EVENTS: dict[Api, list[dict[str, Any]]] = {
    Api.CHAT: [{"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}],
    Api.MESSAGES: [
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
    ],
    Api.RESPONSES: [
        {"type": "response.created", "sequence_number": 0, "response": {"id": "r", "output": []}},
        {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": {"id": "i"}},
        {"type": "response.output_text.delta", "sequence_number": 2, "item_id": "i", "delta": "a"},
    ],
}

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(api=st.sampled_from(sorted(EVENTS)), data=st.data(), value=ANYTHING)
def test_a_limit_ends_a_stream_whatever_stands_in_its_events(api: Api, data: st.DataObject, value: object) -> None:
    """Any field may be of any type, or missing: the last events are written all the same, each of them as JSON."""
    events = json.loads(json.dumps(EVENTS[api]))
    place: Any = data.draw(st.sampled_from(events))
    while True:
        name = data.draw(st.sampled_from(sorted(place))) if isinstance(place, dict) else 0
        if not (inner := place[name]) or not isinstance(inner, dict | list) or data.draw(st.booleans()):
            break
        place = inner
    place[name] = value
    sent = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    last = last_events(api, sent, Usage(5, 6), reason=Reason.RATE_LIMITED_TOKENS, sequences=1, includes_usage=True)
    written = [line[6:] for line in last.split(b"\n") if line.startswith(b"data: ") and not line.endswith(b"[DONE]")]
    assert any("hearth_reason" in json.loads(line) for line in written)
