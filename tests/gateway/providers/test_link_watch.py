"""How long a probe may take: it follows the probes that were answered, within shares of the connect timeout."""

from __future__ import annotations

import pytest

from gateway.providers.link_watch import LOOK_SHARE, MIN_PROBE_SHARE, TRUSTED_SHARE, _probe_s


@pytest.mark.parametrize(
    ("took_s", "allowed_s"),
    [(None, 0.6), (0.001, 0.3), (0.075, 0.3), (0.1, 0.4), (0.2, 0.6), (5.0, 0.6)],
)
def test_a_probe_may_take_four_times_the_last_ones(took_s: float | None, allowed_s: float) -> None:
    """Between three and six tenths of the connect timeout; without a probe that was answered the longest."""
    assert _probe_s(1.0, took_s) == pytest.approx(allowed_s)
    assert _probe_s(2.0, None if took_s is None else 2.0 * took_s) == pytest.approx(2.0 * allowed_s)


def test_a_cut_behind_a_fast_link_is_noticed_within_three_quarters() -> None:
    """Also where a probe was answered just before the cut, as the docs state."""
    assert TRUSTED_SHARE + LOOK_SHARE + MIN_PROBE_SHARE <= 0.75
