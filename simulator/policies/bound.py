"""An upper bound of cache hits: one cache as large as all together, which knows the future (Belady).

Whatever pods hold between them, one cache of their sum can hold, and of all ways to run that cache none hits more than
the one that drops what will be requested last. So no routing of the same arrivals hits more; whether any can hit as
much, given time, load and separate caches, is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from simulator.traces import Trace


def clairvoyant_ratio(trace: Trace, kv_tokens: int) -> float:
    """The bound as a share of all prompt tokens; `kv_tokens` is what all engines hold together.

    An engine always computes the last token of a prompt, as ours do, so a block that holds it is of no use.
    """
    size = trace.block_tokens
    if size is None:
        return 0.0
    useful = [(one.prompt_tokens - 1) // size for one in trace.arrivals]
    hits = clairvoyant_hits([one.blocks for one in trace.arrivals], useful, kv_tokens // size)
    return sum(hits) * size / sum(one.prompt_tokens for one in trace.arrivals)


def clairvoyant_hits(chains: Sequence[Sequence[int]], next_use_at: Sequence[int], capacity: int) -> list[int]:
    """How many leading blocks each prompt finds in a cache of `capacity` blocks.

    `chains` are the prompts' blocks in order of arrival, of which the first `next_use_at` could be reused at all.
    """
    next_uses = _next_uses(chains)
    due: dict[int, float] = {}
    farthest: list[tuple[float, int, int]] = []
    hits = []
    for chain, useful, following in zip(chains, next_use_at, next_uses, strict=True):
        found = 0
        while found < min(useful, len(chain)) and chain[found] in due:
            found += 1
        hits.append(found)
        for depth, block in enumerate(chain):
            due[block] = following[depth]
            # Of blocks wanted at the same time the deeper goes first: without its parents it would be of no use.
            heappush(farthest, (-following[depth], -depth, block))
        while len(due) > capacity:
            negative, _, block = heappop(farthest)
            if due.get(block) == -negative:
                del due[block]
    return hits


def _next_uses(chains: Sequence[Sequence[int]]) -> list[list[float]]:
    """For each block of each prompt: which prompt uses it next."""
    upcoming: dict[int, float] = {}
    uses: list[list[float]] = []
    for index in range(len(chains) - 1, -1, -1):
        uses.append([upcoming.get(block, inf) for block in chains[index]])
        upcoming.update(dict.fromkeys(chains[index], float(index)))
    uses.reverse()
    return uses
