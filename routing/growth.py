"""How prefill cost grows with context, learned: the one number 1 / L0 in cold x (1 + context / L0).

A line through the origin in two things, tokens and tokens times the context they attend to, fitted to what first tokens
took. It has no intercept and only its slopes' ratio is used, so no queue can bend it until work looks free: what all
requests wait alike makes growth look smaller, and growth is bounded. Time and engines are not known here.
"""

from __future__ import annotations

CONTEXT_SCALE_TOKENS = 100_000.0
"""L0 before anything was seen: where attention costs as much as all else for a model of a few dozen layers."""

SHORTEST_SCALE_TOKENS = 10_000.0
"""No model's attention outweighs the rest of it sooner; what looks so is a queue."""

MEMORY = 300.0
"""Observations after which the old has faded."""

LEAST_TOKENS = 2_000.0
"""Shorter prefills say more of the step in flight than of themselves."""

FARTHEST = 2.0
"""Seconds more, or less, than so many times what was expected count as so many times that."""

PRIOR_TOKENS = (4_000.0, 16_000.0, 64_000.0)
"""Prompts without a warm token which the prior is taken to have seen, once each."""


class Growth:
    """One per fleet: engines of one model share it, whatever their speed."""

    def __init__(self) -> None:
        self.per_token = 1 / CONTEXT_SCALE_TOKENS
        self._scale = 0.0
        self._sums = [0.0] * 5
        """Of squares and products of tokens x, tokens times context q, and seconds y: xx, xq, qq, xy, qy."""

    def observe(self, cold_tokens: float, context_tokens: float, seconds: float) -> None:
        """A prefill that nothing stood before took so long, as the fleet's usual engine would count it."""
        if cold_tokens < LEAST_TOKENS or seconds <= 0:
            return
        attended = cold_tokens * (context_tokens - cold_tokens / 2)
        if not self._scale:
            self._scale = seconds / (cold_tokens + attended * self.per_token)
            for tokens in PRIOR_TOKENS:
                square = tokens * tokens / 2
                self._add(tokens, square, self._scale * (tokens + square / CONTEXT_SCALE_TOKENS))
        expected = self._scale * (cold_tokens + attended * self.per_token)
        self._sums = [one * (1 - 1 / MEMORY) for one in self._sums]
        self._add(cold_tokens, attended, min(max(seconds, expected / FARTHEST), expected * FARTHEST))
        self._solve()

    def _add(self, tokens: float, attended: float, seconds: float) -> None:
        # The error of a sum of many steps grows as its root: each counts by one over its length.
        weight = 1 / (tokens + attended * self.per_token)
        products = (tokens * tokens, tokens * attended, attended * attended, tokens * seconds, attended * seconds)
        self._sums = [one + weight * product for one, product in zip(self._sums, products, strict=True)]

    def _solve(self) -> None:
        xx, xq, qq, xy, qy = self._sums
        determinant = xx * qq - xq * xq
        if determinant <= 1e-9 * xx * qq:
            return
        each, more = (xy * qq - qy * xq) / determinant, (qy * xx - xy * xq) / determinant
        if each <= 0:
            # All of it seems to be growth: as much as can be.
            self.per_token = 1 / SHORTEST_SCALE_TOKENS
            return
        self.per_token = min(max(more / each, 0.0), 1 / SHORTEST_SCALE_TOKENS)
        work = xx + xq * self.per_token
        self._scale = xy / work if work else self._scale
