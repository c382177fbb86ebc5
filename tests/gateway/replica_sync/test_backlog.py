"""Batches that wait to be applied: peers in turn, and the largest sender pays for what is too much."""

from __future__ import annotations

from gateway.replica_sync.backlog import BATCH_BYTES, Backlog


def drained(backlog: Backlog) -> list[bytes]:
    found = []
    while backlog:
        found.append(backlog.pop())
    return found


def test_peers_take_turns_and_keep_their_order() -> None:
    """One that has sent a thousand batches does not delay another by more than one of them."""
    backlog = Backlog()
    for number in range(1000):
        backlog.put(1, b"flood %d" % number)
    backlog.put(2, b"a")
    backlog.put(2, b"b")
    found = drained(backlog)
    assert found[:4] == [b"flood 0", b"a", b"flood 1", b"b"]
    assert found[4:] == [b"flood %d" % number for number in range(2, 1000)]


def test_who_sends_too_much_loses_it() -> None:
    """By count and by bytes; the others lose nothing."""
    backlog = Backlog(max_batches=10, max_bytes=10_000)
    backlog.put(2, b"small")
    for number in range(100):
        backlog.put(1, b"%d" % number * 10)
    assert (len(backlog), backlog.dropped) == (10, 91)
    backlog.put(1, bytes(9_000))
    backlog.put(3, bytes(20_000))
    found = drained(backlog)
    assert (found[0], len(found[-1]), len(found)) == (b"small", 9_000, 10)
    assert backlog.dropped == 93
    backlog.put(1, bytes(10_000 - BATCH_BYTES))
    assert len(backlog) == 1
