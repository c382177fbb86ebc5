"""NIXL: what a producer answers goes to its peer as it came, if it is all there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.connectors.nixl import NixlPull, NixlPush
from routing.connectors.shape import InvalidTransferParams
from routing.facts import PodFacts
from tests.routing.connectors.meetings import meeting

TOLD = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "d5b269ce",
    "remote_request_id": "chatcmpl-r-bd7de411",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 234,
    "transfer_mode": "pull",
}
NEEDED = [name for name in TOLD if name not in {"do_remote_decode", "remote_num_tokens", "transfer_mode"}]


def test_the_prefill_request_is_to_keep_its_blocks() -> None:
    """And the decode leg is told all that was answered, words we do not know included."""
    assert NixlPull().ask(meeting()) == {"do_remote_decode": True, "do_remote_prefill": False}
    assert NixlPull().hand(meeting(), TOLD) == TOLD


@given(st.sampled_from(NEEDED), st.none() | st.just("x") | st.just([]) | st.just({}))
def test_poison_is_noticed(name: str, instead: object) -> None:
    """Without any of the words, or with another kind of thing in its place, nothing is passed on."""
    poison = {**TOLD, name: instead}
    if name in {"remote_engine_id", "remote_request_id", "remote_host"} and instead == "x":
        return
    if name == "remote_block_ids" and instead == []:
        return
    with pytest.raises(InvalidTransferParams):
        NixlPull().hand(meeting(), poison)
    with pytest.raises(InvalidTransferParams):
        NixlPull().hand(meeting(), {key: value for key, value in TOLD.items() if key != name})


@pytest.mark.parametrize("answered", [None, [], "x", {}])
def test_no_parameters_are_unfit_too(answered: object) -> None:
    """A prefill that ended badly answers none."""
    with pytest.raises(InvalidTransferParams):
        NixlPush().hand(meeting(), answered)


def test_roles_and_parallelism() -> None:
    """Engines of different tensor parallelism pair, of different pipelines not; `kv_both` does either."""
    both, producer = PodFacts(kv_role="kv_both"), PodFacts(kv_role="kv_producer")
    assert NixlPull().may_prefill(producer)
    assert not NixlPull().may_decode(producer)
    assert NixlPull().may_decode(both)
    assert NixlPull().group(PodFacts(tp=1)) == NixlPull().group(PodFacts(tp=8))
    assert NixlPull().group(PodFacts(pp=1)) != NixlPull().group(PodFacts(pp=2))
