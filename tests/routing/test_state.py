"""What is learned from a prompt that an engine has counted."""

import pytest

from routing.blocks import Prompt
from routing.decision.router import Router
from routing.prefix_index import CacheInsertion
from routing.request import Usage
from routing.tokens import PromptTokenEstimate
from tests.routing.engines import MODEL, ask, router_of, serve

ANSWER = b"A far, far better thing that I do. " * 40
EVERYBODY = 1


@pytest.fixture
def router() -> Router:
    """One engine, which has computed the prompt before."""
    router = router_of(1)
    serve(router, ask())
    return router


def computed(router: Router) -> CacheInsertion:
    """The prompt once more, on its way through the engine."""
    trace = router.index.insert(0, ask().prompt)
    router.index.prefill_done(trace)
    return trace


def counted(router: Router, prompt: Prompt) -> float:
    return PromptTokenEstimate(router.counters[MODEL], prompt).tokens(prompt.size)


def held(router: Router, prompt: Prompt) -> int:
    """Bytes of a prompt that the engine is believed to hold."""
    walked = router.index.match(prompt, EVERYBODY)
    return walked[-1][1] if walked else 0


def test_a_prompt_with_its_answer_is_held_and_measured_exactly(router: Router) -> None:
    """The next turn begins with both, and the engine has counted both."""
    grown = ask().prompt.extended(ANSWER)
    before = held(router, grown)
    router.learn_usage(MODEL, computed(router), Usage(1777, 321), grown)
    assert counted(router, grown) == 1777 + 321
    assert held(router, grown) > before > 0


def test_without_its_answer_the_length_of_a_prompt_is_learned(router: Router) -> None:
    """Of all prompts of the model: this one tells how many bytes a token has. Nothing more is held than before."""
    grown = ask().prompt.extended(ANSWER)
    before, ratio = held(router, grown), router.counters[MODEL].size_per_token
    router.learn_usage(MODEL, computed(router), Usage(ask().prompt.size // 8, 5), None)
    assert router.counters[MODEL].size_per_token > ratio
    assert held(router, grown) == before


@pytest.mark.parametrize(("cached_tokens", "is_smaller"), [(None, False), (2000, False), (0, True)])
def test_a_cache_that_held_less_than_believed_is_smaller(
    router: Router, cached_tokens: int | None, is_smaller: bool
) -> None:
    """Unknown is not zero."""
    before = router.index._engines[0].cache.capacity
    router.learn_usage(MODEL, computed(router), Usage(2000, 1, cached_tokens), None)
    assert (router.index._engines[0].cache.capacity < before) == is_smaller
