"""Words that cannot be are counted and passed over: engines unknown here, numbers no request has, other prompts."""

from math import inf, nan

import pytest

from routing.blocks import BLOCK_ENDS, Prompt
from routing.replica_state import (
    EndedUpdate,
    FirstTokenUpdate,
    OpenRequest,
    PlacedUpdate,
    SettledUpdate,
    Snapshot,
    StateUpdate,
)
from tests.routing.engines import MODEL, ask, place
from tests.routing.exchanges import loads, pair


def opened(number: int = 9, **changed: float | str) -> OpenRequest:
    stated = {
        "engine": "http://0",
        "prefill_tokens": 10.0,
        "prefill_s": 0.1,
        "kv_tokens": 10.0,
        "sequences": 1,
        **changed,
    }
    return OpenRequest(number=number, **stated)  # type: ignore[arg-type]


STRANGE: list[StateUpdate] = [
    *(PlacedUpdate(opened(prefill_tokens=value), MODEL, ask().prompt) for value in (nan, inf, -1.0, 1e300)),
    *(PlacedUpdate(opened(prefill_s=value), MODEL, ask().prompt) for value in (nan, inf, -1.0, 1e300)),
    *(PlacedUpdate(opened(kv_tokens=value), MODEL, ask().prompt) for value in (nan, inf, -1.0, 1e300)),
    *(PlacedUpdate(opened(sequences=count), MODEL, ask().prompt) for count in (0, -1, 1 << 40)),
    PlacedUpdate(opened(engine="http://nowhere"), MODEL, ask().prompt),
    Snapshot((opened(1), opened(engine="http://nowhere"))),
    *(FirstTokenUpdate(1, work, 1.0) for work in (nan, -1.0, 1e300)),
    *(FirstTokenUpdate(1, 10.0, took) for took in (nan, -1.0, 0.0, 1e300)),
    *(SettledUpdate(1, tokens) for tokens in (-1, 1 << 63)),
    SettledUpdate(1, 1, -1),
    SettledUpdate(1, 1, 0, -1),
    *(SettledUpdate(1, decode_s=took, completion_tokens=5) for took in (nan, inf, -1.0)),
    SettledUpdate(1, running=nan, decode_s=1.0, completion_tokens=5),
]


@pytest.mark.parametrize("word", STRANGE)
def test_what_cannot_be_is_counted_and_passed_over(word: StateUpdate) -> None:
    """A number that no request has, or an engine that is not known here, changes neither ledger nor costs nor index."""
    here, there = pair(1)
    place(there.router, ask())
    there.voice.publish_snapshot()
    here.hearing.apply(*there.batch(), 0.0)

    def state() -> tuple[object, ...]:
        router = here.router
        return (
            loads(router),
            list(router.costs.seconds_per_token),
            list(router.costs.step_base_s),
            router.index.size_of(0),
        )

    before = state()
    here.hearing.apply(there.name, 2, [word], 0.0)
    if isinstance(word, FirstTokenUpdate):
        before = ({"http://0": (0.0, *before[0]["http://0"][1:])}, *before[1:])  # type: ignore[index]
    assert (state(), here.hearing.rejected) == (before, 1)


def test_a_first_token_without_work_teaches_nothing() -> None:
    """Its prefill was done elsewhere: that is no fault, and says nothing of this engine's speed."""
    here, there = pair(1)
    place(there.router, ask())
    there.voice.publish_snapshot()
    here.hearing.apply(*there.batch(), 0.0)
    before = list(here.router.costs.seconds_per_token)
    here.hearing.apply(there.name, 2, [FirstTokenUpdate(1, 0.0, 1.0)], 0.0)
    assert (list(here.router.costs.seconds_per_token), here.hearing.rejected) == (before, 0)


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt((1, 2, 3), BLOCK_ENDS, 20),
        Prompt((1, 2, 3), (32, 64), 500),
        Prompt((1, 2, 3), BLOCK_ENDS, 1 << 62),
        Prompt((), BLOCK_ENDS, 500),
    ],
)
def test_a_prompt_that_cannot_be_is_charged_but_not_warm(prompt: Prompt) -> None:
    """More blocks than its size has, or none: nothing is believed of it, and its load still counts."""
    here, there = pair(1)
    here.hearing.apply(there.name, 1, [PlacedUpdate(opened(), MODEL, prompt)], 0.0)
    assert (here.router.index.size_of(0), here.router.ledger.running) == (0, [1])
    here.hearing.apply(there.name, 2, [SettledUpdate(9, 100, 0, 5, (4, 5), 999), EndedUpdate(9)], 0.0)
    assert (here.router.index.size_of(0), here.router.ledger.running) == (0, [0])


def test_an_answer_that_cannot_be_is_not_believed() -> None:
    """A prompt with its answer has no more blocks than its size allows."""
    here, there = pair(1)
    prompt = Prompt((1, 2, 3), BLOCK_ENDS, 140)
    here.hearing.apply(there.name, 1, [PlacedUpdate(opened(), MODEL, prompt)], 0.0)
    for number, size in enumerate((1, 140, 255, -5, 1 << 62), start=2):
        here.hearing.apply(there.name, number, [SettledUpdate(9, 100, 0, 5, (4,), size)], 0.0)
        assert here.router.index.size_of(0) == 128
    here.hearing.apply(there.name, 9, [SettledUpdate(9, 100, 0, 5, (4,), 256)], 0.0)
    assert here.router.index.size_of(0) == 256
