"""What a walk down a prompt says of every engine."""

from routing.walked import prefix_of, warmth_of
from tests.routing.engines import MODEL, ask, router_of, serve


def test_warm_tokens_are_whole_blocks_and_leave_something_to_compute() -> None:
    """Whoever holds all of a prompt computes its last block; whoever holds nothing, all of it."""
    router = router_of(2)
    placement = serve(router, ask())
    again = router._look(ask(), frozenset(), 1.0).candidates
    at = again.engines.index(placement.engine)
    assert again.warm_tokens[at] % 16 == 0
    assert 0 < again.warm_tokens[at] < again.prompt_tokens
    assert again.warm_tokens[1 - at] == 0
    assert again.prefill_work[1 - at] > again.prefill_work[at] > 0


def test_a_prefix_is_the_last_block_that_is_so_long() -> None:
    """By its end."""
    prompt = ask().prompt
    assert prefix_of(prompt, prompt.ends[3]) == prompt.blocks[3]
    assert callable(warmth_of)
    assert MODEL
