"""The board's sums are of what is in flight, and nothing stays when it has left."""

from simulator.policies.board import Board


def test_a_request_counts_until_it_ends_and_its_prefill_until_the_first_token() -> None:
    """Uncached tokens leave at the first token, the prompt and the request at the end; twice is as once."""
    board = Board()
    board.place("a", 1, 1000.0, 400.0)
    assert (board.requests[1], board.waiting[1], board.prefill_tokens[1], board.prompt_tokens[1]) == (1, 1, 600, 1000)
    board.first_token("a")
    board.first_token("a")
    assert (board.requests[1], board.waiting[1], board.prefill_tokens[1], board.prompt_tokens[1]) == (1, 0, 0, 1000)
    board.end("a")
    board.end("a")
    assert (board.requests[1], board.waiting[1], board.prefill_tokens[1], board.prompt_tokens[1]) == (0, 0, 0, 0)


def test_a_request_placed_again_is_only_there() -> None:
    """As when its first pod failed."""
    board = Board()
    board.place("a", 0, 100.0, 0.0)
    board.place("a", 1, 100.0, 0.0)
    assert (board.requests[0], board.requests[1], board.prefill_tokens[0]) == (0, 1, 0)


def test_blocks_in_flight_are_counted_once_for_all_that_share_them() -> None:
    """Only where somebody asks for them."""
    board = Board()
    board.place("a", 0, 200.0, 0.0, (1, 2))
    assert not board.blocks[0]
    board.keeps_blocks = True
    board.place("b", 0, 200.0, 0.0, (1, 2))
    board.place("c", 0, 200.0, 0.0, (1, 3))
    assert len(board.blocks[0]) == 3
    board.end("b")
    assert sorted(board.blocks[0]) == [1, 3]
