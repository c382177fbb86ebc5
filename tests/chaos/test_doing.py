"""Deeds are done when they were planned, unless the machine was too busy to undo those before."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import pytest

from tests.chaos.cast import Cast
from tests.chaos.deeds import Deed, Kind
from tests.chaos.doing import Doing

CAST = cast("Cast", SimpleNamespace(pods=range(3), gateways=range(3)))


@pytest.mark.parametrize(
    ("suffering", "deed"),
    [
        (["gateway1"], Deed(0.0, Kind.KILL_GATEWAY, 1, 0.0)),
        (["pod0", "pod1"], Deed(0.0, Kind.KILL_POD, 2, 0.0)),
        (["redis0"], Deed(0.0, Kind.FLUSH_REDIS, 0, 0.0)),
    ],
)
async def test_no_one_is_lost_twice_and_one_is_always_well(suffering: list[str], deed: Deed) -> None:
    """What comes too early is left out, and said to be."""
    received: list[str] = []
    doing = Doing(CAST, received.append)
    with ExitStack() as stack:
        for name in suffering:
            stack.enter_context(doing.to(name))
        await doing.all([deed])
    assert [line.partition(": ")[2] for line in received] == ["left out, others are not back yet"]


@pytest.mark.parametrize("suffering", ["gateway0", "pod1", "redis0"])
async def test_what_is_not_too_early_is_done(suffering: str) -> None:
    """Others of its kind may suffer meanwhile, as long as one is left."""
    done: list[Deed] = []

    class Noting(Doing):
        async def do(self, deed: Deed) -> None:
            done.append(deed)

    doing, deed = Noting(CAST, lambda _: None), Deed(0.0, Kind.KILL_GATEWAY, 1, 0.0)
    with doing.to(suffering):
        await doing.all([deed])
    assert done == [deed]
