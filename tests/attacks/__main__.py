"""`make attacks`: ten thousand of each against a real gateway, and what its memory says. Minutes."""

from __future__ import annotations

import argparse
import sys

import uvloop

from tests.attacks.attacks import ATTACKS, MB
from tests.attacks.playing import Played, play, room_for, staged

ROW = "{name:<50} {count:>8} {took:>9} {might:>9} {series:>7} {kept:>5}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="connections of an attack")
    parser.add_argument("--only", default="", help="attacks whose names hold this")
    requested = parser.parse_args()
    return uvloop.run(run(room_for(requested.count), requested.only))


async def run(count: int, only: str) -> int:
    """The exit status: 1 where a bound did not hold."""
    print(ROW.format(name="attack", count="count", took="took MB", might="may MB", series="series", kept="kept"))
    played = []
    for attack in ATTACKS:
        if only in attack.name:
            async with staged() as stage:
                played.append(await play(stage, attack, count))
            print(row(played[-1]), flush=True)
    return 0 if all(one.is_kept for one in played) else 1


def row(one: Played) -> str:
    took, might = one.took / MB, one.might / MB
    return ROW.format(
        name=one.name,
        count=one.count,
        took=f"{took:.0f}",
        might=f"{might:.0f}",
        series=one.series,
        kept="yes" if one.is_kept else "NO",
    )


if __name__ == "__main__":
    sys.exit(main())
