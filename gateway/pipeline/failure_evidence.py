"""Decides whether a failed attempt counts against its pod, or only against the one tenant whose requests fail there.

A pod that answers others is not taken to be broken because requests of one tenant fail on it, one after the other: an
input that its engine cannot take, or answers that take longer than the timeout. As soon as requests of a second tenant
fail too, or none of another tenant's was answered for a while, all failures count. Pure: time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf

from gateway.pipeline.attempt import AttemptStatus

ANSWERED_S = 10.0
"""How long an answer to another tenant shows that a pod works."""

MAX_PODS = 4_096
"""Pods with a record; of the others all failures count."""

MAX_SUSPECTS = 4_096

CAUSED_BY_REQUESTS = frozenset({AttemptStatus.TIMEOUT, AttemptStatus.UPSTREAM_5XX, AttemptStatus.INVALID_RESPONSE})
"""Ends that a request can bring about on a pod that works. Others show that connections or engines are gone."""


class PodEvidence:
    """What one pod has done for which tenants."""

    __slots__ = ("failed", "last", "last_s", "other_s")

    def __init__(self, tenant: str, now_s: float) -> None:
        self.last, self.last_s = tenant, now_s
        """The tenant that was answered last, and when."""
        self.other_s = -inf
        """When a tenant other than that one was."""
        self.failed: str | None = None
        """The tenant whose failures since the last answer did not count; None where there were none."""


class FailureEvidence:
    """Of all pods of one gateway."""

    def __init__(self) -> None:
        self._pods: OrderedDict[str, PodEvidence] = OrderedDict()
        self._suspects: dict[str, float] = {}
        """When a tenant's requests last failed on a pod that answers others: what fails elsewhere does not count."""

    def answered(self, pod: str, tenant: str, now_s: float) -> None:
        """Note that a pod has answered a request of a tenant."""
        known = self._pods.get(pod)
        if known is None:
            if len(self._pods) >= MAX_PODS:
                self._pods.popitem(last=False)
            self._pods[pod] = PodEvidence(tenant, now_s)
            return
        if known.last != tenant:
            known.last, known.other_s = tenant, known.last_s
        known.last_s, known.failed = now_s, None

    def counts(self, pod: str, tenant: str, end: AttemptStatus, now_s: float) -> bool:
        """Return whether a failure counts against its pod."""
        if end not in CAUSED_BY_REQUESTS:
            return True
        known = self._pods.get(pod)
        if known is not None:
            if known.failed not in (None, tenant):
                return True
            answered_s = known.other_s if known.last == tenant else known.last_s
            if now_s - answered_s <= ANSWERED_S:
                known.failed = tenant
                if tenant not in self._suspects and len(self._suspects) >= MAX_SUSPECTS:
                    self._suspects.clear()
                self._suspects[tenant] = now_s
                return False
        return now_s - self._suspects.get(tenant, -inf) > ANSWERED_S
