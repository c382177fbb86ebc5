"""What a run of chaos may do: the same again for the same seed, and never to everybody at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.deeds import BACK_S, Deed, draw_deeds

SEEDS = st.integers(0, 1 << 32)


@given(SEEDS)
def test_the_same_seed_does_the_same(seed: int) -> None:
    """So a run that broke a promise can be played again."""
    assert draw_deeds(seed, 120.0, 3, 3) == draw_deeds(seed, 120.0, 3, 3)


@given(SEEDS)
def test_one_pod_and_one_gateway_are_always_well(seed: int) -> None:
    """Else nobody could serve, and failing would be no fault."""
    deeds = draw_deeds(seed, 300.0, 3, 3)
    for now_s in (deed.at_s for deed in deeds):
        suffering = [deed for deed in deeds if _suffers(deed, now_s)]
        assert len({deed.who for deed in suffering if deed.kind.befalls_pod}) < 3
        assert len({deed.who for deed in suffering if deed.kind.befalls_gateway}) < 3


def test_there_is_something_done() -> None:
    """To pods, gateways and Redis alike."""
    done = {deed.kind for deed in draw_deeds(1, 3600.0, 3, 3)}
    assert any(kind.befalls_pod for kind in done)
    assert any(kind.befalls_gateway for kind in done)
    assert any(not kind.befalls_pod and not kind.befalls_gateway for kind in done)


def _suffers(deed: Deed, now_s: float) -> bool:
    return deed.at_s <= now_s < deed.at_s + deed.lasts_s + BACK_S
