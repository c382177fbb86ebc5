"""Limits of a machine are shared out among its processes."""

from gateway.config.limits import Limits


def test_processes_keep_together_to_what_one_may_take() -> None:
    """Connections and held bodies are divided; what bounds a single request is not."""
    limits = Limits(max_connections=10, max_total_body_bytes=400 << 20, max_body_bytes=32 << 20)
    share = limits.per_process(4)
    assert (share.max_connections, share.max_total_body_bytes) == (3, 100 << 20)
    assert (share.max_body_bytes, share.max_headers) == (limits.max_body_bytes, limits.max_headers)
    assert limits.per_process(1) == limits


def test_one_body_fits_whatever_the_share() -> None:
    """Or a body within the limit would be refused for ever."""
    assert (
        Limits(max_total_body_bytes=64 << 20, max_body_bytes=32 << 20).per_process(8).max_total_body_bytes == 32 << 20
    )
