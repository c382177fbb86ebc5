"""Retry hints of rejections: never negative, never without meaning."""

from __future__ import annotations

from math import inf, nan

import pytest

from gateway.pipeline.rejections import rejection_headers
from routing.rejection import Reason, RequestRejected


@pytest.mark.parametrize("after_s", [-4.3, -0.0001, 0.0, 1e-9])
def test_a_hint_is_never_below_the_least_that_can_be_written(after_s: float) -> None:
    """Whatever was computed, clients read at least one second and one millisecond."""
    headers = rejection_headers(RequestRejected(Reason.OVERLOADED, "No.", retry_after_s=after_s))
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "1")


@pytest.mark.parametrize("after_s", [inf, nan])
def test_a_time_that_cannot_be_written_is_left_out(after_s: float) -> None:
    """Without a finite estimate there is no hint, and no error."""
    headers = rejection_headers(RequestRejected(Reason.OVERLOADED, "No.", retry_after_s=after_s))
    assert "retry-after" not in headers
    assert "retry-after-ms" not in headers
