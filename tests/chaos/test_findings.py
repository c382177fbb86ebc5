"""A finding under chaos needs a deed that explains it, and ends within a minute of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from diagnosis.recipes.registry import BY_NAME
from tests.chaos.__main__ import FOUND_SECONDS, FOUND_SEED
from tests.chaos.cast import Cast
from tests.chaos.deeds import Kind, Whom, draw_deeds
from tests.chaos.findings import EXPLAINS, FINDABLE, LASTING, Done, FindingWatch

PLACES = {"http://pod0": 0, "http://pod1": 1}


def watched(recipe: str, seconds: range, *pods: str) -> FindingWatch:
    """A watch that sees one finding in each of these seconds, and then none."""
    watch = FindingWatch(cast("Cast", SimpleNamespace(gateways=[])))
    shown = {"recipe": recipe, "pool": "tiny", "pods": list(pods)}
    for now_s in seconds:
        watch.note("gateway0", [shown], PLACES, now_s)
    watch.note("gateway0", [], PLACES, seconds.stop)
    return watch


@pytest.mark.parametrize(
    ("kind", "who", "words"),
    [
        (Kind.HANG_POD, 1, None),
        (Kind.HANG_POD, 0, "nothing of that kind was done"),
        (Kind.PAUSE_POD, 1, "nothing of that kind was done"),
    ],
)
def test_a_finding_needs_a_deed_of_its_kind_to_its_pod(kind: Kind, who: int, words: str | None) -> None:
    """A pause of the pod, or a hang of another one, explains no stalled engine."""
    faults = list(
        watched("engine_stalled", range(30, 60), "http://pod1").faults([Done(f"pod{who}", kind, who, 10.0, 40.0)])
    )
    assert [words in fault for fault in faults if words] == ([True] if words else [])
    assert bool(faults) is bool(words)


def test_a_finding_ends_within_a_minute_of_its_deed() -> None:
    """And not a second later, unless another deed brings it about again."""
    watch = watched("engine_stalled", range(30, 110), "http://pod1")
    once = Done("pod1", Kind.HANG_POD, 1, 10.0, 40.0)
    assert "69 s after" in next(watch.faults([once]))
    assert list(watch.faults([once, Done("pod1", Kind.FREEZE_POD, 1, 80.0, 90.0)])) == []
    assert len(list(watch.faults([once, Done("pod0", Kind.FREEZE_POD, 0, 80.0, 90.0)]))) == 1


def test_a_finding_is_listed_with_its_deed() -> None:
    """Seconds from its begin to the finding, and from its end to the last sight of it."""
    watch = watched("engine_stalled", range(40, 60), "http://pod1")
    (line,) = watch.lines([Done("pod1", Kind.HANG_POD, 1, 10.0, 45.0)])
    assert line == (
        "gateway0 found engine_stalled of pods [1]: hang engine of pod 1; found 30 s after its begin, last seen +14 s "
        "from its end"
    )
    assert "unexplained" in next(watch.lines([]))


def test_a_finding_that_ends_and_returns_is_two() -> None:
    """Each needs its own deed."""
    watch = watched("redis_slow", range(30, 40))
    watch.note("gateway0", [{"recipe": "redis_slow", "pool": "", "pods": []}], PLACES, 500.0)
    assert len(watch.found) == 2
    assert len(list(watch.faults([Done("redis0", Kind.PAUSE_REDIS, 0, 10.0, 35.0)]))) == 1


def test_every_recipe_that_is_explained_exists() -> None:
    """By its name in the registry."""
    assert set(EXPLAINS) <= set(BY_NAME)


def test_the_scene_of_lasting_deeds_has_what_can_be_found() -> None:
    """Pods that hang, crash and are slow, and a Redis that is slow; each for longer than a finding takes."""
    deeds = draw_deeds(FOUND_SEED, FOUND_SECONDS, 3, 3, kinds=FINDABLE, pace=LASTING)
    assert {Kind.HANG_POD, Kind.CRASH_POD, Kind.SLOW_POD, Kind.LAG_REDIS} <= {deed.kind for deed in deeds}
    assert {deed.lasts_s for deed in deeds} == {45.0}
    assert all(deed.kind.whom is not Whom.GATEWAY for deed in deeds)
