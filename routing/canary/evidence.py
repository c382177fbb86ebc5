"""What comparisons of a canary with the standing pods show: counts that can be added up, tests and intervals of them.

Every test is a bet that is fair, or unfavorable, unless the canary is worse (or, for the other side, better) than a
limit. The bettor's wealth reaches 1 / error with a probability of at most `error`, however often it is looked at
(Ville's inequality; betting as in Waudby-Smith and Ramdas). Wealth depends on counts only, not on their order. So the
counts of all gateways are added up, and each of them finds the same verdict.

Counts are also kept by group of tenants, so that a verdict can be required without any one of them: for whatever tenant
misbehaves, the bet without its group is one of those that must win, and is fair. Pure.
"""

from __future__ import annotations

from math import ceil, exp, fsum, log, log1p

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

BETS = (0.1, 0.2, 0.4, 0.8)
"""Shares of its wealth that a bettor stakes: small ones find small differences, large ones large differences soon."""

STEP = 1.02
"""Width of a cell of ratios."""

MAX_CELL = 70
"""Ratios above `STEP` ** 70, a factor of 4, are counted in one cell; those below its inverse in another."""

DIFFERENCE_STEPS = 200
"""Steps between 0 and 1 of the bounds of a difference."""

MAX_RATIO = 3.9
"""Limits above this one could not be told from the last cell."""

TENANT_GROUPS = 64
"""Tenants are told apart by so many groups, which bounds what gateways share. Two tenants are one group with a chance
of 1.6 %.
"""

MAX_EXPONENT = 700.0

Interval = tuple[float | None, float | None]
"""Lower and upper bound; None where nothing bounds it yet."""


def group_of(tenant: str) -> int:
    """Return the group of a tenant, 0 to `TENANT_GROUPS` - 1: the same one on every gateway."""
    return xxh3_64_intdigest(tenant.encode("utf-8", "surrogatepass")) % TENANT_GROUPS


def cell_of(ratio: float) -> int:
    """Return the cell of a ratio: the smallest k with ratio <= `STEP` ** k."""
    if ratio <= 0.0:
        return -MAX_CELL
    return max(-MAX_CELL, min(MAX_CELL + 1, ceil(log(ratio) / log(STEP) - 1e-9)))


class RatioEvidence(Struct, frozen=True, omit_defaults=True):
    """Ratios of a canary's time to that of a like request of the standing pods."""

    counts: dict[int, int] = {}
    """Comparisons by cell."""

    def __add__(self, other: RatioEvidence) -> RatioEvidence:
        counts = dict(self.counts)
        for cell, count in other.counts.items():
            counts[cell] = counts.get(cell, 0) + count
        return RatioEvidence(counts)

    def __sub__(self, part: RatioEvidence) -> RatioEvidence:
        return RatioEvidence({cell: count - part.counts.get(cell, 0) for cell, count in self.counts.items()})

    @property
    def total(self) -> int:
        """Return the number of comparisons."""
        return sum(self.counts.values())

    def above(self, limit: float) -> float:
        """Return the wealth of a bet that the median ratio is above `limit`, rounded up to the end of its cell."""
        longer = self._longer(limit)
        return _even_wealth(longer, self.total - longer)

    def below(self, limit: float) -> float:
        """Return the wealth of a bet that the median ratio is at most `limit`."""
        longer = self._longer(limit)
        return _even_wealth(self.total - longer, longer)

    def interval(self, bar: float) -> Interval:
        """Return an interval that has the median ratio, at any time, with an error of at most 1 / bar on each side."""
        lower = upper = None
        longer = total = self.total
        for cell in range(-MAX_CELL, MAX_CELL + 1):
            longer -= self.counts.get(cell, 0)
            if _even_wealth(longer, total - longer) >= bar:
                lower = STEP**cell
            if upper is None and _even_wealth(total - longer, longer) >= bar:
                upper = STEP**cell
        return lower, upper

    def _longer(self, limit: float) -> int:
        bound = cell_of(limit)
        return sum(count for cell, count in self.counts.items() if cell > bound)


class DifferenceEvidence(Struct, frozen=True, omit_defaults=True):
    """Like requests of which the canary's was worse, better or the same: by errors, or by quality."""

    worse: int = 0
    better: int = 0
    same: int = 0

    def __add__(self, other: DifferenceEvidence) -> DifferenceEvidence:
        return DifferenceEvidence(self.worse + other.worse, self.better + other.better, self.same + other.same)

    def __sub__(self, part: DifferenceEvidence) -> DifferenceEvidence:
        return DifferenceEvidence(self.worse - part.worse, self.better - part.better, self.same - part.same)

    @property
    def total(self) -> int:
        """Return the number of comparisons."""
        return self.worse + self.better + self.same

    def above(self, limit: float) -> float:
        """Return the wealth of a bet that the share of worse less that of better ones is above `limit`, -1 to 1."""
        return _wealth(
            [
                (bet / (1.0 + limit), ((1.0 - limit, self.worse), (-limit, self.same), (-1.0 - limit, self.better)))
                for bet in BETS
            ]
        )

    def below(self, limit: float) -> float:
        """Return the wealth of a bet that this difference of shares is below `limit`, -1 to 1."""
        return _wealth(
            [
                (bet / (1.0 - limit), ((limit - 1.0, self.worse), (limit, self.same), (1.0 + limit, self.better)))
                for bet in BETS
            ]
        )

    def interval(self, bar: float) -> Interval:
        """Return an interval of this difference, at any time, with an error of at most 1 / bar on each side."""
        bounds = [step / DIFFERENCE_STEPS for step in range(1 - DIFFERENCE_STEPS, DIFFERENCE_STEPS)]
        lower = next((bound for bound in reversed(bounds) if self.above(bound) >= bar), None)
        return lower, next((bound for bound in bounds if self.below(bound) >= bar), None)


class GroupEvidence(Struct, frozen=True, omit_defaults=True):
    """Comparisons of one group of tenants, which are part of those of the trial."""

    ttft: RatioEvidence = RatioEvidence()
    tpot: RatioEvidence = RatioEvidence()
    errors: DifferenceEvidence = DifferenceEvidence()
    """Attempts that failed by the fault of their pod."""

    def __add__(self, other: GroupEvidence) -> GroupEvidence:
        return GroupEvidence(self.ttft + other.ttft, self.tpot + other.tpot, self.errors + other.errors)


class TrialEvidence(Struct, frozen=True, omit_defaults=True):
    """All comparisons of a trial."""

    ttft: RatioEvidence = RatioEvidence()
    tpot: RatioEvidence = RatioEvidence()
    errors: DifferenceEvidence = DifferenceEvidence()
    quality: DifferenceEvidence = DifferenceEvidence()
    """Answers to the same request, of tenants that the operator has chosen."""
    by_group: dict[int, GroupEvidence] = {}
    """By group of tenants; comparisons that are in none of them are no tenant's own."""

    def __add__(self, other: TrialEvidence) -> TrialEvidence:
        by_group = dict(self.by_group)
        for group, found in other.by_group.items():
            by_group[group] = by_group[group] + found if group in by_group else found
        return TrialEvidence(
            self.ttft + other.ttft,
            self.tpot + other.tpot,
            self.errors + other.errors,
            self.quality + other.quality,
            by_group,
        )

    def without(self, group: int) -> TrialEvidence:
        """Return what is left without a group of tenants, which is counted in no group."""
        part = self.by_group[group]
        return TrialEvidence(self.ttft - part.ttft, self.tpot - part.tpot, self.errors - part.errors, self.quality)

    def of_group(self, group: int | None) -> TrialEvidence:
        """Return these comparisons as those of a group; as they are with None."""
        if group is None:
            return self
        return replace(self, by_group={group: GroupEvidence(self.ttft, self.tpot, self.errors)})


NO_EVIDENCE = TrialEvidence()


def _even_wealth(won: int, lost: int) -> float:
    """Return the mean wealth of bettors in an even game, who began with 1."""
    return _wealth([(bet, ((1.0, won), (-1.0, lost))) for bet in BETS])


def _wealth(bettors: list[tuple[float, tuple[tuple[float, int], ...]]]) -> float:
    """Return the mean wealth of bettors: each has its stake, and gains by stake with the number of rounds."""
    logs = [fsum(count * log1p(stake * gain) for gain, count in rounds if count) for stake, rounds in bettors]
    return fsum(exp(min(each, MAX_EXPONENT)) for each in logs) / len(logs)
