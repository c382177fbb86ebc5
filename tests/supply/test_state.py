"""The memory of decisions as a value and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from supply.state import SupplyState, TierMemory, decode_state, encode_state
from tests.supply.builders import MONDAY_S, decide, load_of


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version":99}', '{"version":1,"pools":3}'])
def test_a_damaged_state_is_an_error(text: str) -> None:
    """One kind of error for all of them."""
    with pytest.raises(ValueError, match="supply state"):
        decode_state(text)


def test_models_that_have_gone_are_forgotten() -> None:
    """After two weeks without a decision; a model in use keeps its memory."""
    _, state = decide([replace(load_of(5), model="a|b")])
    _, state = decide([replace(load_of(5), model="c")], state=state, begin_s=MONDAY_S + 60)
    assert set(state.last_s) == {"a|b", "c"}
    _, state = decide([replace(load_of(5), model="c")], state=state, begin_s=MONDAY_S + 15 * 86_400)
    assert set(state.last_s) == {"c"}
    assert list(state.tiers) == ["c|gold"]
    assert list(state.pools) == ["c|default|either"]


@pytest.mark.parametrize(
    "text", ['{"version":1,"pools":{},"tiers":{},"last_s":{"m":1' + "0" * 400 + "}}", "[" * 100_000]
)
def test_numbers_without_bound_and_depth_are_a_value_error(text: str) -> None:
    """Nothing else is raised, whatever a peer or a file holds."""
    with pytest.raises(ValueError, match="supply state"):
        decode_state(text)


def test_a_state_is_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the encoder lets no other thread run: it would hold the event loop up for as long as it takes."""
    lengths: list[int] = []
    dumps = json.dumps

    def measured(*values: Any, **settings: Any) -> str:
        lengths.append(len(text := dumps(*values, **settings)))
        return text

    monkeypatch.setattr("supply.state.json.dumps", measured)
    text = encode_state(SupplyState({}, {f"m{number}|gold": TierMemory() for number in range(8)}, {"m1": 1.0}))
    assert decode_state(text).tiers.keys() == {f"m{number}|gold" for number in range(8)}
    assert max(lengths) < len(text) / 4
