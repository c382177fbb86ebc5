"""What is by chance or of the outside world, made the same each time: draws, names, the date, log files."""

from __future__ import annotations

import itertools
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from uuid import UUID

EPOCH_S = 1_800_000_000.0


class Written:
    """In place of a file: the lines that were written to it."""

    all: dict[str, list[bytes]]

    def __init__(self, target: object, **_: Any) -> None:
        self.dropped_lines = 0
        self._lines = Written.all.setdefault(getattr(target, "name", str(target)), [])

    def put(self, lines: bytes, count: int = 1) -> None:
        self._lines.extend(lines.splitlines())

    def reopen(self) -> None:
        """There is nothing to open."""

    def close(self, timeout_s: float = 0.0) -> None:
        """Nor to close."""


@contextmanager
def stilled(clock: Callable[[], float], seed: int) -> Iterator[dict[str, list[bytes]]]:
    """Yields what is logged meanwhile, by the name of its file; standard output is `1`."""
    chance, numbers, plain = random.Random(seed), itertools.count(seed), random.Random
    Written.all = {}

    class Seeded(plain):  # type: ignore[misc, valid-type]
        def __init__(self, given: Any = None) -> None:
            super().__init__(next(numbers) if given is None else given)

    with ExitStack() as stack:
        for target, name, stand_in in (
            (random, "Random", Seeded),
            (secrets, "token_hex", lambda size=16: chance.randbytes(size).hex()),
            (secrets, "randbits", chance.getrandbits),
            (time, "time", lambda: EPOCH_S + clock()),
        ):
            stack.enter_context(patch.object(target, name, stand_in))
        for place in ("simulator.service.uuid4", "simulator.transfer.transfers.uuid4"):
            stack.enter_context(patch(place, lambda: UUID(bytes=chance.randbytes(16), version=4)))
        stack.enter_context(patch("gateway.observe.writers.LineWriter", Written))
        yield Written.all
