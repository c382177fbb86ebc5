"""The main job on real engines: a conversation stays where it is warm, and what was predicted is what was so.

Real are the `cached_tokens` of the engine's own usage. Turns are asked one at a time where a test insists on a pod:
with others in flight it may be right to leave a warm pod for an idle one.
"""

import asyncio
import itertools
import secrets
from bisect import bisect_right
from math import ceil
from typing import Any

import pytest

from routing.blocks import BLOCK_ENDS
from tests.conformance.subject import APIS, CHAT, COMPLETIONS, STORY, Subject
from tests.vllm.gateways import Gateway, Receipt
from tests.vllm.pods import BLOCK_TOKENS, CONTEXT_TOKENS, Pod
from tests.vllm.talks import Talk, Turn

TEXTS = {
    "tiny": "What is the capital of France?",
    "short": "Name three things that float on the sea, and say why they do.",
    "longer": " ".join(itertools.islice(itertools.cycle(STORY), 600)) + ". Tell me what happened next.",
    "not ASCII": "Größe, Maß und Überfluß; 東京の海は静かです、そして船はゆっくり進みます。 Ξένοι στη θάλασσα. 🌊🚢 "
    * 4,
}

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        # So the call is short: the template spells it anew for the next turn, and not quite as it was generated.
        "strict": True,
        "description": "What the weather is like in a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def front(gateway: Gateway, pods: tuple[Pod, ...]) -> Subject:
    """The gateway, asked as if it were one of its pods."""
    return Subject(gateway.url, pods[0].model, BLOCK_TOKENS, CONTEXT_TOKENS)


def fresh(text: str) -> str:
    """A text that no engine has seen, nor any beginning of it."""
    return f"{secrets.token_hex(4)}: {text}"


def begin(front: Subject, path: str) -> Talk:
    """A conversation whose first turn fills a block of the engine's: in less than that nothing can be warm."""
    # Asked to go on with a text, this model may have nothing to add; in a chat the template alone fills a block.
    return Talk(front, path, fields={"min_tokens": 24} if path == COMPLETIONS else {})


def one_block(turn: Turn, receipt: Receipt) -> int:
    """Our block in which the warm part ends, in tokens of this very prompt: no finer is what we can know.

    The engine itself counts in whole blocks of its own, so the answer is rounded up to those.
    """
    bytes_per_token = receipt.prompt_bytes / turn.prompt_tokens
    at = bisect_right(BLOCK_ENDS, turn.cached_tokens * bytes_per_token)
    size = BLOCK_ENDS[at] - (BLOCK_ENDS[at - 1] if at else 0)
    return ceil(size / bytes_per_token / BLOCK_TOKENS) * BLOCK_TOKENS


def assert_foreseen(turn: Turn, receipt: Receipt) -> None:
    """The receipt tells the real warm tokens, and predicted them to within one of our blocks."""
    assert receipt.actual_cached_input_tokens == turn.cached_tokens
    assert abs(receipt.predicted_cached_input_tokens - turn.cached_tokens) <= one_block(turn, receipt), (turn, receipt)


async def three_turns(talk: Talk, gateway: Gateway, opening: str, *, streams: tuple[bool, ...]) -> None:
    """The second and the third land where the first did, and find there all that was said."""
    first = await talk.send(opening, stream=streams[0])
    home = gateway.receipt(first.receipt_id).pod
    before = first
    for number, stream in enumerate(streams[1:], 2):
        turn = await talk.send(f"And then? That was part {number}.", stream=stream)
        receipt = gateway.receipt(turn.receipt_id)
        assert receipt.pods == (home,), f"turn {number} left its warm pod: {receipt.candidates}"
        # All whole blocks of the turn before; a template may close a turn otherwise than it opened the answer.
        assert turn.cached_tokens >= (before.prompt_tokens - BLOCK_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS
        assert_foreseen(turn, receipt)
        before = turn


CONVERSATIONS = [
    pytest.param(path, text, marks=() if path == CHAT or text == "longer" else pytest.mark.nightly)
    for path in APIS
    for text in TEXTS
]
"""Each API, and each length; the other pairs at night."""


@pytest.mark.parametrize(("path", "text"), CONVERSATIONS)
async def test_a_conversation_stays_where_it_is_warm(front: Subject, gateway: Gateway, path: str, text: str) -> None:
    """Streamed and not, by each API: every turn goes to the pod of the first and is as warm there as was predicted."""
    await three_turns(begin(front, path), gateway, fresh(TEXTS[text]), streams=(False, True, False))


@pytest.mark.parametrize("path", APIS)
async def test_a_streamed_beginning_is_remembered_as_well(front: Subject, gateway: Gateway, path: str) -> None:
    """What was streamed first is warm for a turn that is not streamed, and the other way round."""
    await three_turns(begin(front, path), gateway, fresh(TEXTS["longer"]), streams=(True, False, True))


async def test_a_system_prompt_and_content_parts(front: Subject, gateway: Gateway) -> None:
    """A conversation that begins with instructions and spells its text as parts is one like any other."""
    system = {"role": "system", "content": fresh("You answer in one sentence, whatever is asked. " * 8)}
    talk = Talk(front, CHAT, history=[system])
    await three_turns(talk, gateway, "What is the sea?", streams=(True, True, False))
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "the sea?"}]
    talk.history[1]["content"] = parts
    turn = await talk.send("And the sky?", stream=False)
    assert_foreseen(turn, gateway.receipt(turn.receipt_id))


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls(front: Subject, gateway: Gateway, stream: bool) -> None:
    """A call, its result and what follows: the turns after a tool call stay where the tools and the call are warm."""
    chosen = {"type": "function", "function": {"name": "get_weather"}}
    talk = Talk(front, CHAT, fields={"tools": [WEATHER], "tool_choice": chosen})
    first = await talk.send(fresh("What is the weather like in Paris? " * 6), stream=stream, tokens=96)
    home = gateway.receipt(first.receipt_id).pod
    (call,) = talk.history[-1]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    talk.history.append({"role": "tool", "tool_call_id": call["id"], "content": '{"sky": "clear"}'})
    talk.fields["tool_choice"] = "none"
    for words in ("Tell me in a sentence.", "And in Rome?"):
        turn = await talk.send(words, stream=stream)
        receipt = gateway.receipt(turn.receipt_id)
        assert receipt.pods == (home,)
        assert turn.cached_tokens >= first.prompt_tokens - 2 * BLOCK_TOKENS
        assert_foreseen(turn, receipt)


async def test_interleaved_conversations_keep_separate(front: Subject, gateway: Gateway, pods: tuple[Pod, ...]) -> None:
    """Conversations begun at once are spread over the pods, and each of them stays where it began."""
    talks = [begin(front, path) for path in (CHAT, COMPLETIONS) * 3]
    openings = [fresh(TEXTS[name]) for name in ("short", "longer", "not ASCII") * 2]
    firsts = await asyncio.gather(
        *(
            talk.send(opening, stream=bool(number % 2))
            for number, (talk, opening) in enumerate(zip(talks, openings, strict=True))
        )
    )
    homes = [gateway.receipt(turn.receipt_id).pod for turn in firsts]
    assert set(homes) == {pod.url for pod in pods}
    for number in (2, 3):
        for at in (3, 0, 5, 1, 4, 2):
            turn = await talks[at].send(f"And then? That was part {number}.", stream=bool((number + at) % 2))
            receipt = gateway.receipt(turn.receipt_id)
            assert receipt.pods == (homes[at],), f"conversation {at}, turn {number}: {receipt.candidates}"
            assert_foreseen(turn, receipt)


async def test_conversations_at_once(front: Subject, gateway: Gateway) -> None:
    """With turns of others in flight, wherever a turn goes, what was predicted of that pod is so."""
    talks = [Talk(front, CHAT) for _ in range(4)]
    opening = [fresh(TEXTS["longer"]) for _ in talks]
    for words in (opening, ["And then?"] * 4, ["Tell me more."] * 4):
        turns = await asyncio.gather(
            *(talk.send(history, stream=True) for talk, history in zip(talks, words, strict=True))
        )
        for turn in turns:
            assert_foreseen(turn, gateway.receipt(turn.receipt_id))


async def test_a_prompt_that_others_share_is_warm_for_all(front: Subject, gateway: Gateway) -> None:
    """A common system prompt is warm from the second conversation on, where one has been before."""
    system = {"role": "system", "content": fresh(TEXTS["longer"])}
    first = await Talk(front, CHAT, history=[system]).send("What is the sea?", stream=True)
    second = await Talk(front, CHAT, history=[system]).send("What is the sky made of?", stream=True)
    receipts = [gateway.receipt(turn.receipt_id) for turn in (first, second)]
    assert receipts[0].pod == receipts[1].pod
    assert second.cached_tokens > first.prompt_tokens // 2
    assert_foreseen(second, receipts[1])


async def test_the_ledger_is_empty_afterwards(front: Subject, gateway: Gateway) -> None:
    """What was charged has been given back."""
    await Talk(front, CHAT).send(fresh("One more."), stream=True)
    assert gateway.charged() == []
