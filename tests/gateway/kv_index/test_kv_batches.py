"""Payloads of every age, and of nobody's."""

import msgspec
import pytest

from gateway.kv_index.kv_batches import Reader, UnreadableError, sequence_of
from routing.precise.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from tests.gateway.kv_index.publisher import pack


def test_maps_and_arrays_are_the_same_events() -> None:
    """Newer vLLM packs an event as a map, older as an array in the order of the fields."""
    reader = Reader()
    stored, removed = BlockStored([1], None, [5, 6], 2, medium="GPU"), BlockRemoved([1], "GPU")
    rows = [["BlockStored", [1], None, [5, 6], 2, None, "GPU"], ["BlockRemoved", [1], "GPU"], ["AllBlocksCleared"]]
    old = reader.read(msgspec.msgpack.encode([0.0, rows]))
    new = reader.read(pack([stored, removed, AllBlocksCleared()]))
    assert new == [stored, removed, AllBlocksCleared()]
    assert [msgspec.structs.astuple(event) for event in old] == [msgspec.structs.astuple(event) for event in new]
    assert isinstance(old[0], BlockStored)


def test_unknown_events_are_passed_over_and_counted() -> None:
    """What a later vLLM says beside what we know does not cost us the rest."""
    reader = Reader()
    events = reader.read(pack([{"type": "BlockMoved", "to": 3}, AllBlocksCleared(), {"type": "BlockStored"}]))
    assert events == [AllBlocksCleared()]
    assert reader.unread == 2


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"hello", msgspec.msgpack.encode({"a": 1}), b"\x93" * 3000])
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    """One error for all of it."""
    with pytest.raises(UnreadableError):
        Reader().read(payload)


def test_numbers_are_eight_bytes() -> None:
    """Big end first; anything else is none."""
    assert sequence_of((258).to_bytes(8, "big")) == 258
    assert sequence_of(b"12") is None
