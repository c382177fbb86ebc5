"""What a run of chaos may do: the same again for the same seed, and never to everybody at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.deeds import USUAL, Deed, Kind, Whom, draw_deeds

SEEDS = st.integers(0, 1 << 32)


@given(SEEDS)
def test_the_same_seed_does_the_same(seed: int) -> None:
    """So a run that broke a promise can be played again, shorter too."""
    deeds = draw_deeds(seed, 120.0, 3, 3)
    assert deeds == draw_deeds(seed, 120.0, 3, 3)
    assert [deed for deed in deeds if deed.at_s < 60.0] == list(draw_deeds(seed, 60.0, 3, 3))


@given(SEEDS)
def test_one_pod_and_one_gateway_are_always_well(seed: int) -> None:
    """Else nobody could serve, and failing would be no fault."""
    deeds = draw_deeds(seed, 300.0, 3, 3)
    for now_s in (deed.at_s for deed in deeds):
        suffering = [deed for deed in deeds if _suffers(deed, now_s)]
        for whom in (Whom.POD, Whom.GATEWAY):
            assert len({deed.who for deed in suffering if deed.kind.whom is whom}) < 3


def test_every_kind_of_action_is_done() -> None:
    """In an hour of it at the latest."""
    assert {deed.kind for deed in draw_deeds(1, 3600.0, 3, 3)} == set(Kind)


def _suffers(deed: Deed, now_s: float) -> bool:
    return deed.at_s <= now_s < deed.at_s + deed.lasts_s + USUAL.back_s
