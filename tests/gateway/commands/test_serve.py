"""What `hearth serve` settles for its process before the loop runs."""

import gc
from collections.abc import Iterator

import pytest

from gateway.commands.serve import GC_THRESHOLDS, _tune_garbage_collector


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector, afterwards as it was."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collector")
def test_what_was_loaded_is_walked_no_more() -> None:
    """Full collections look at what requests leave, not at every module: they must not hold up first tokens."""
    _tune_garbage_collector()
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < gc.get_freeze_count() / 10
    assert gc.get_threshold() == GC_THRESHOLDS
