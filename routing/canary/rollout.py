"""Which side of a canary serves a request: its pods for their share of requests, the standing pods for all others.

The share is counted, not drawn: at any time the canary has had at most its share of the requests that it could serve,
rounded down. Each group of tenants has a count of its own, so that none takes another's part. A canary that prefills or
decodes for others is paired with the standing pods of the other role. Where the standing pods cannot serve, the canary
does, whatever its share: no request is rejected for its sake. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from enum import StrEnum

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from routing.canary.evidence import group_of
from routing.canary.verdict import CanaryTerms
from routing.facts import Role
from routing.fleet import Fleet
from routing.pods import Pod
from routing.request import Request

PER_MILLION = 1_000_000
"""Shares are counted in whole millionths, so that no rounding of fractions adds up."""

ONE_ROLE = (frozenset((Role.PREFILL,)), frozenset((Role.DECODE,)))

OTHER_ROLE = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


class CanaryUse(StrEnum):
    """What requests the pods on trial serve."""

    NOTHING = "nothing"
    SHARE = "share"
    ALL = "all"
    """Like all other pods."""


class CanaryReason(StrEnum):
    """Why an attempt had the side that it had."""

    SHARE = "share"
    """It was the turn of the canary."""
    STANDING = "standing"
    """It was the turn of the standing pods."""
    NOT_ADMITTED = "not_admitted"
    """It was the canary's turn, but its engines could take no more."""
    NOT_CHOSEN = "not_chosen"
    """It was the canary's turn, but an engine without it was faster: only prefill or decode is on trial."""
    NO_STANDING_POD = "no_standing_pod"
    """No standing pod could serve it."""


class ShareCount:
    """Requests that could go either way, and those that the canary had: never above its share."""

    def __init__(self, share: float) -> None:
        """`share`: 0 to 1; counted to a millionth."""
        self._millionths = int(share * PER_MILLION + 1e-6)
        self.offered = 0
        self.taken = 0

    @property
    def is_due(self) -> bool:
        """Return whether the next request may go to the canary."""
        return (self.taken + 1) * PER_MILLION <= (self.offered + 1) * self._millionths

    def count(self, *, is_taken: bool) -> None:
        """Count a request that was placed."""
        self.offered += 1
        self.taken += is_taken


class Division(Struct, frozen=True, gc=False):
    """Which pods are left out for one request."""

    excluded: frozenset[str]
    reason: CanaryReason | None = None
    """None where the canary is out of the question: its pods serve nothing, or none could serve this request."""
    otherwise: frozenset[str] | None = None
    """Pods to leave out instead where the canary's engines admit no more; None where it is not its turn."""
    members: frozenset[str] = frozenset()
    """Pods on trial that could serve it."""
    count: ShareCount | None = None
    """Where it is counted; None where one side could not serve it."""


UNDIVIDED = Division(frozenset())


class Rollout:
    """The canary of a router; its use follows the verdict (`gateway/canary/`)."""

    def __init__(self, terms: CanaryTerms) -> None:
        self.terms = terms
        self.use = CanaryUse.NOTHING
        self._counts: defaultdict[tuple[bool, int | None], ShareCount] = defaultdict(
            lambda: ShareCount(terms.traffic_share)
        )
        """By whether requests have a session, and by group of tenants. Of the sessions a share goes to the canary, each
        the same way while the count allows.
        """

    def members(self, pods: Iterable[Pod]) -> list[Pod]:
        """Return those of the pods that are on trial."""
        return [pod for pod in pods if self.terms.includes(pod.pool, pod.facts.revision)]

    def served(self, *, sessions: bool) -> tuple[int, int]:
        """Return how many requests, with or without a session, could go either way, and how many the canary had."""
        counts = [count for (has_session, _), count in self._counts.items() if has_session is sessions]
        return sum(count.offered for count in counts), sum(count.taken for count in counts)

    def divide(self, fleet: Fleet, request: Request, avoid: frozenset[str]) -> Division:
        """Return which pods are left out for a request, beside those to `avoid`. Counts nothing."""
        if self.use is CanaryUse.ALL or request.pods is not None:
            return UNDIVIDED
        ready = [pod for pod in fleet.serving(request.model, request.regions) if pod.url not in avoid]
        on_trial = self.members(ready)
        if not on_trial:
            return UNDIVIDED
        members = frozenset(pod.url for pod in on_trial)
        answering = [engine.pod for engine in fleet.eligible(request.model, request.regions).engines]
        standing_serves = _any_left(answering, members | avoid)
        if self.use is CanaryUse.NOTHING:
            return Division(members) if standing_serves else Division(frozenset(), CanaryReason.NO_STANDING_POD)
        others = _replaced(on_trial, ready, members, may_pair=request.may_pair)
        if others is None or not _any_left(answering, others | avoid):
            return Division(members) if standing_serves else UNDIVIDED
        group = None if request.tenant is None else group_of(request.tenant)
        count = self._counts[bool(request.session), group]
        if not standing_serves:
            return Division(frozenset(), CanaryReason.NO_STANDING_POD, members=members, count=count)
        if count.is_due and (not request.session or self._is_session_on_trial(request.session)):
            return Division(others, CanaryReason.SHARE, members, members, count)
        return Division(members, CanaryReason.STANDING, members=members, count=count)

    def replaced(self, fleet: Fleet, request: Request) -> frozenset[str]:
        """Return the ready standing pods whose part in a request its pods take; empty where they cannot serve it."""
        ready = fleet.serving(request.model, request.regions)
        on_trial = self.members(ready)
        members = frozenset(pod.url for pod in on_trial)
        return _replaced(on_trial, ready, members, may_pair=request.may_pair) or frozenset()

    def placed(self, division: Division, pods: Collection[str], *, is_admitted: bool = True) -> CanaryReason | None:
        """Count a request that was placed on these pods, and return why; None where no canary had a part in it.

        `is_admitted`: False where the canary's engines admitted no more.
        """
        if division.reason is None:
            return None
        is_taken = not division.members.isdisjoint(pods)
        if division.count is not None:
            division.count.count(is_taken=is_taken)
        if division.reason is CanaryReason.SHARE and not is_taken:
            return CanaryReason.NOT_CHOSEN if is_admitted else CanaryReason.NOT_ADMITTED
        return division.reason

    def _is_session_on_trial(self, session: str) -> bool:
        draw = xxh3_64_intdigest(f"{self.terms.name}\0{session}".encode("utf-8", "surrogatepass")) / 2.0**64
        return draw < self.terms.traffic_share


def _any_left(answering: Iterable[str], excluded: frozenset[str]) -> bool:
    return any(pod not in excluded for pod in answering)


def _replaced(
    on_trial: Iterable[Pod], ready: Iterable[Pod], members: frozenset[str], *, may_pair: bool
) -> frozenset[str] | None:
    """Return the standing pods that the canary replaces; None where it cannot serve a request that may not pair.

    A canary of one role replaces all but the pods of the other role alone.
    """
    roles = _roles(on_trial)
    standing = [pod for pod in ready if pod.url not in members]
    if roles not in ONE_ROLE:
        return frozenset(pod.url for pod in standing)
    (role,) = roles
    if role is Role.PREFILL and not may_pair:
        return None
    return frozenset(pod.url for pod in standing if _roles((pod,)) != frozenset((OTHER_ROLE[role],)))


def _roles(pods: Iterable[Pod]) -> frozenset[Role]:
    return frozenset(engine.role for pod in pods for engine in pod.engines)
