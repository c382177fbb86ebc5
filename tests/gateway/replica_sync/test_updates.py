"""News survive their journey, between versions too."""

from collections.abc import Sequence
from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.replica_sync.updates import (
    BLOCK_SIZES_ID,
    MAX_INTEGER,
    SCHEMA,
    UndecodableBatchError,
    batch_head,
    decode_batch,
    encode_batch,
    teaches,
)
from routing.blocks import BLOCK_ENDS, PackedPrompt, Prompt, cut_prompt
from routing.ledger import AdmittedAs, StreamObjective
from routing.replica_state import (
    EndedUpdate,
    FirstTokenUpdate,
    OpenRequest,
    PlacedUpdate,
    QueueUpdate,
    RejectedUpdate,
    SettledUpdate,
    Snapshot,
    StateUpdate,
    SupplyUpdate,
    TenantWaiting,
    TierWaiting,
)
from tests.gateway.replica_sync import schema1

COUNTS = st.integers(0, 1 << 40)
TIMES = st.integers(0, 10**12).map(lambda us: us / 1e6)
HASHES = st.integers(0, 2**64 - 1)
TENANTS = st.none() | st.sampled_from(["acme", "other"])
ADMITTED = st.builds(
    AdmittedAs, st.just("m"), st.sampled_from(["gold", "bronze"]), TENANTS, st.integers(1, 9), TIMES, COUNTS
)
OBJECTIVES = st.builds(
    StreamObjective,
    st.sampled_from([0.05, 0.15, inf]),
    st.integers(0, 10**6).map(lambda n: n / 1e3),
    st.none() | ADMITTED,
)
CHARGES = st.builds(
    OpenRequest,
    HASHES,
    st.sampled_from(["http://a", "http://b#1"]),
    COUNTS,
    TIMES,
    COUNTS,
    st.integers(1, 8),
    st.booleans(),
    st.booleans(),
    st.none() | OBJECTIVES,
)
TENANTS_WAITING = st.lists(st.builds(TenantWaiting, TENANTS, TIMES, COUNTS), max_size=2).map(tuple)
TIERS_WAITING = st.builds(
    TierWaiting, st.just("m"), st.just("gold"), st.integers(0, 10**6).map(lambda n: n / 1e3), COUNTS, TENANTS_WAITING
)
TEXTS = st.text("ab", max_size=12).map(lambda letters: b"".join(letter.encode() * 60 for letter in letters))
PROMPTS = TEXTS.map(lambda text: cut_prompt(text, 5)).map(lambda cut: Prompt(cut.blocks, (), cut.size))
"""Without their ends, which are the same for all and would fill pages where a test fails."""
WORDS: st.SearchStrategy[StateUpdate] = st.one_of(
    st.builds(PlacedUpdate, CHARGES, st.sampled_from(["m", "n"]), PROMPTS, st.none() | HASHES, st.booleans()),
    st.builds(FirstTokenUpdate, HASHES, COUNTS, TIMES),
    st.builds(
        SettledUpdate,
        HASHES,
        COUNTS,
        st.none() | COUNTS,
        COUNTS,
        st.lists(HASHES, max_size=3).map(tuple),
        COUNTS,
        st.none() | HASHES,
        COUNTS.map(lambda tenths: tenths / 10),
        st.none() | TIMES,
    ),
    st.builds(EndedUpdate, HASHES),
    st.builds(Snapshot, st.lists(CHARGES, max_size=3).map(tuple)),
    st.builds(QueueUpdate, st.lists(TIERS_WAITING, max_size=2).map(tuple)),
    st.builds(RejectedUpdate, HASHES, TIMES),
    st.builds(SupplyUpdate, st.binary(max_size=12)),
)


def bare(word: StateUpdate) -> StateUpdate:
    """Without the ends of its prompt, and with the blocks unpacked."""
    if not isinstance(word, PlacedUpdate):
        return word
    prompt = word.prompt
    assert isinstance(prompt, PackedPrompt)
    assert prompt.ends is BLOCK_ENDS
    return replace(word, prompt=Prompt(prompt.blocks, (), prompt.size))


@given(HASHES, HASHES, st.lists(WORDS, max_size=12))
def test_updates_come_out_as_they_went_in(origin: int, number: int, news: list[StateUpdate]) -> None:
    """Every word, with its blocks put together again from what it shares with the word before; those that schema 1 does
    not know come last.
    """
    news = sorted(news, key=lambda word: isinstance(word, QueueUpdate | RejectedUpdate | SupplyUpdate))
    batch = encode_batch(origin, number, news)
    found = decode_batch(batch)
    assert (found.replica_id, found.number, list(map(bare, found.updates)), found.skipped) == (origin, number, news, 0)
    assert batch_head(batch) == (origin, number)
    assert teaches(batch) == any(not isinstance(word, QueueUpdate | RejectedUpdate | SupplyUpdate) for word in news)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(noise: bytes) -> None:
    """Whatever stands in a stream is a batch or is unreadable."""
    for read in (decode_batch, batch_head):
        try:
            read(noise)
        except UndecodableBatchError:
            continue


@given(st.lists(WORDS, min_size=1, max_size=4), st.data())
def test_no_broken_batch_breaks_the_reader(news: list[StateUpdate], draw: st.DataObject) -> None:
    """Nor does a batch with some of its bytes changed or cut off."""
    batch = bytearray(encode_batch(1, 2, news))
    for _ in range(3):
        batch[draw.draw(st.integers(0, len(batch) - 1))] = draw.draw(st.integers(0, 255))
    try:
        decode_batch(bytes(batch[: draw.draw(st.integers(0, len(batch)))]))
    except UndecodableBatchError:
        return


def charge(number: int = 1) -> OpenRequest:
    return OpenRequest(number, "http://a", 10, 0.5, 20, 1)


def test_what_prompts_share_is_reported_once() -> None:
    """Ten prompts with one long beginning weigh little more than one."""
    one, many = (
        encode_batch(
            1, 1, [PlacedUpdate(charge(n), "m", cut_prompt(b"x" * 40_000 + b"%d" % n * 500, 1)) for n in range(count)]
        )
        for count in (1, 10)
    )
    assert len(one) > 500
    assert len(many) < 2 * len(one)


def from_later(batch: bytes, *, words: Sequence[object], head: dict[int, object] | None = None) -> bytes:
    """The batch as a later version might write it."""
    stated = msgspec.msgpack.decode(batch)
    stated[6] = [*stated[6], *words]
    for place, value in (head or {}).items():
        stated[place] = value
    return msgspec.msgpack.encode([*stated, {"a field": "to come"}])


def test_words_of_later_versions_are_passed_over() -> None:
    """What is known of a later version's batch is heard: old words, also where they have new fields."""
    words = [[99, "what is this", [1, 2]], [4, 7, "a field to come"], {"no": "array"}, [2, "no number", 1, 1]]
    found = decode_batch(from_later(encode_batch(1, 2, [EndedUpdate(5)]), words=words, head={0: SCHEMA + 3}))
    assert (found.updates, found.skipped) == ([EndedUpdate(5), EndedUpdate(7)], 3)


def test_a_prompt_behind_an_unknown_word_is_read_only_where_it_stands_alone() -> None:
    """The unknown word may have held the prompt that the next one shares its beginning with."""
    prompts = [cut_prompt(b"x" * 500 + end, 1) for end in (b"", b"a" * 200, b"b" * 300)]
    stated = msgspec.msgpack.decode(
        encode_batch(1, 2, [PlacedUpdate(charge(n), "m", p) for n, p in enumerate(prompts)])
    )
    stated[6][1] = [1, "a placing of another shape"]
    found = decode_batch(msgspec.msgpack.encode(stated))
    assert [word.prompt.blocks for word in found.updates if isinstance(word, PlacedUpdate)] == [prompts[0].blocks, ()]


def test_a_batch_for_later_readers_only_is_unreadable() -> None:
    """Where neither new words nor new fields do, the whole batch is passed over, and said to be so."""
    with pytest.raises(UndecodableBatchError, match="schema"):
        decode_batch(from_later(encode_batch(1, 2, [EndedUpdate(5)]), words=[], head={1: SCHEMA + 1}))


def test_prompts_cut_otherwise_are_charged_but_not_warm() -> None:
    """A version that cuts prompts into other blocks tells us its load, and nothing of its prefixes."""
    news: list[StateUpdate] = [
        PlacedUpdate(charge(), "m", cut_prompt(b"x" * 500, 1)),
        SettledUpdate(1, 10, 0, 5, (1, 2), 900),
    ]
    found = decode_batch(from_later(encode_batch(1, 2, news), words=[], head={2: BLOCK_SIZES_ID + 1}))
    placed, settled = found.updates
    assert isinstance(placed, PlacedUpdate)
    assert (placed.charge, placed.prompt.blocks) == (charge(), ())
    assert isinstance(settled, SettledUpdate)
    assert settled.grown_blocks == ()


def test_what_is_no_number_is_written_as_what_no_one_believes() -> None:
    """A cost that has run away must not stop the news."""
    found = decode_batch(encode_batch(1, 2, [FirstTokenUpdate(1, float("nan"), float("inf"))])).updates[0]
    assert isinstance(found, FirstTokenUpdate)
    assert found.work_tokens == MAX_INTEGER


def test_names_that_are_not_there_are_passed_over() -> None:
    """A charge on an engine beyond the list of names is nobody's."""
    stated = msgspec.msgpack.decode(
        encode_batch(1, 2, [PlacedUpdate(charge(), "m", cut_prompt(b"", 1)), Snapshot((charge(),))])
    )
    stated[5] = []
    found = decode_batch(msgspec.msgpack.encode(stated))
    assert (found.updates, found.skipped) == ([], 2)


OBJECTIVE = StreamObjective(0.05, 26.8, AdmittedAs("m", "gold", "acme", 2.0, 0.1, 200.0))


def test_schema_1_reads_all_that_it_knows_of_a_batch_of_this_version() -> None:
    """After a downgrade: charges, prompts and ends as before; what was promised, waits and was rejected is left out."""
    prompts = [cut_prompt(b"x" * 900 + end, 1) for end in (b"a" * 200, b"b" * 300)]
    placed: list[StateUpdate] = [
        PlacedUpdate(replace(charge(n), objective=OBJECTIVE), "m", prompt) for n, prompt in enumerate(prompts)
    ]
    waiting = QueueUpdate((TierWaiting("m", "gold", 1.0, 2),))
    added: list[StateUpdate] = [waiting, RejectedUpdate(7, 1.0), SupplyUpdate(b"x")]
    batch, found = schema1.read(encode_batch(1, 2, [placed[0], *added, placed[1], EndedUpdate(5)]))
    first, second, ended, *unknown = found
    assert isinstance(first, schema1.Placed)
    assert isinstance(second, schema1.Placed)
    assert [batch.names[first.charge.engine], batch.names[first.model]] == ["http://a", "m"]
    assert (first.charge.prefill_us, first.charge.kv_tokens, first.size) == (500_000, 20, prompts[0].size)
    assert len(first.blocks) == 8 * len(prompts[0].blocks)
    assert second.shared + len(second.blocks) // 8 == len(prompts[1].blocks)
    assert (ended, unknown) == (schema1.Ended(5), [None, None, None])


def test_earlier_versions_charge_nothing_for_what_is_sent_again() -> None:
    """They take it for a request that begins and ends in the same batch, and enter its prompt."""
    prompt = cut_prompt(b"x" * 900, 1)
    bare = OpenRequest(7, "http://a", 0.0, 0.0, 0.0, 1, in_prefill=False, queues=False)
    again: list[StateUpdate] = [PlacedUpdate(bare, "m", prompt, is_resent=True), SettledUpdate(7), EndedUpdate(7)]
    _, (placed, _, ended) = schema1.read(encode_batch(1, 2, again))
    assert isinstance(placed, schema1.Placed)
    assert (placed.charge.prefill_tokens, placed.charge.kv_tokens, placed.charge.queues) == (0, 0, False)
    assert len(placed.blocks) == 8 * len(prompt.blocks)
    assert ended == schema1.Ended(7)


def test_a_batch_of_schema_1_carries_load_without_objectives() -> None:
    """Before an upgrade of all: a charge of the version before counts, without an objective."""
    old = schema1.Charge(1, 0, 10, 500_000, 20, 1)
    batch = schema1.write(
        BLOCK_SIZES_ID, 3, 4, ["http://a", "m"], [schema1.Placed(old, 1, 0, 0, b""), schema1.Ended(9)]
    )
    found = decode_batch(batch)
    placed, ended = found.updates
    assert isinstance(placed, PlacedUpdate)
    assert (placed.charge, ended, found.skipped) == (charge(), EndedUpdate(9), 0)
    assert placed.charge.objective is None
