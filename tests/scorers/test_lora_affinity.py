"""Adapters are preferred where they are loaded."""

from routing.request import Api, Request
from scorers.lora_affinity import LoraAffinity
from tests.scorers.columns import candidates_of

REQUEST = Request("r", Api.CHAT, "adapter")


def test_who_does_not_hold_the_adapter_must_load_it() -> None:
    """Seconds for those who must, none for who holds it."""
    seen = candidates_of(3, holds_adapter=[False, True, False])
    assert LoraAffinity(load_s=2.0).score(REQUEST, seen) == [2.0, 0.0, 2.0]


def test_a_model_that_is_no_adapter_is_loaded_everywhere() -> None:
    """Nothing to say."""
    assert LoraAffinity().score(REQUEST, candidates_of(3)) == []
