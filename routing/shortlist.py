"""Who is worth scoring in a large fleet: the engines with the shortest queues, and those that hold more of the prompt.

A decision then costs about the same for a hundred engines as for a thousand. What it leaves out could not win: it holds
no more of the prompt than some with shorter queues. Makes no choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from routing.roster import Roster

SCORED_WHOLE = 48
"""Up to so many engines all are scored."""

LEAST_QUEUED = 16
"""Of all, and of every group that holds equally much."""


def shortlist(
    roster: Roster, walked: Sequence[tuple[int, int]], queue_rank: Sequence[float], session_at: int | None
) -> list[int]:
    """Positions in the roster, in order.

    `walked`: who holds how much, as masks; `queue_rank`: the less, the less is queued.
    """
    least_queued = sorted(range(len(queue_rank)), key=queue_rank.__getitem__)
    places = set(least_queued[:LEAST_QUEUED])
    for mask, _ in walked:
        holders = mask.bit_count()
        if holders <= LEAST_QUEUED:
            places.update(roster.places(mask))
        elif 2 * holders < len(queue_rank):
            # Of what most hold, some with the shortest queues hold it too.
            places.update(islice(_holders(mask, roster.slots, least_queued), LEAST_QUEUED))
    if session_at is not None:
        places.add(session_at)
    return sorted(places)


def _holders(mask: int, slots: Sequence[int], places: Iterable[int]) -> Iterator[int]:
    return (place for place in places if mask >> slots[place] & 1)
