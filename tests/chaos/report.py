"""What a run came to: its promises, kept or not, and its figures. Knows only what clients and watchers saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.chaos.clients import Ended, Fate
from tests.chaos.reported import Told
from tests.chaos.watching import Most

RESUMED = 0.999
"""Of the streams that lost their pod, so many go on unbroken."""

BROKEN = (Fate.FAILED, Fate.WRONG)

HONEST_STATUSES = frozenset((200, 429))
"""What clients may be answered while a pod and a gateway are well: the answer, or that a limit is reached."""


@dataclass(slots=True)
class Tally:
    """What became of a run."""

    name: str
    ended: list[Ended] = field(default_factory=list)
    lost: Sequence[tuple[float, float]] = ()
    """From when until when a gateway was not there."""
    deeds: int = 0
    findings: list[str] = field(default_factory=list)
    """Of all gateways; `faults_seen` has those that no deed explains."""
    asked_again: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    reported: Told = field(default_factory=Told)
    most: Most = field(default_factory=Most)
    faults_seen: list[str] = field(default_factory=list)
    """By the watchers, and what had not returned to zero."""
    forgives: frozenset[Fate] = frozenset()
    """Fates that this run does not count as broken promises."""

    @property
    def fates(self) -> Counter[Fate]:
        return Counter(one.fate for one in self.ended)

    def faults(self) -> list[str]:
        """Every broken promise in words."""
        return [*self._broken(), *self._cut(), *self._reconnected(), *self._refused(), *self.faults_seen]

    def _broken(self) -> Iterator[str]:
        for one in self.ended:
            if one.fate in BROKEN and one.fate not in self.forgives:
                yield _say(one)

    def _cut(self) -> Iterator[str]:
        cut = [one for one in self.ended if one.fate is Fate.CUT]
        of = self.reported.resumed + len(cut)
        if Fate.CUT not in self.forgives and len(cut) > (1 - RESUMED) * of:
            yield f"{len(cut)} of {of} streams that lost their pod were not resumed"
            yield from map(_say, cut)

    def _reconnected(self) -> Iterator[str]:
        """Only the loss of a gateway costs a client that."""
        for one in self.ended:
            if one.fate is Fate.RECONNECTED and not self._lost_gateway(one):
                yield f"{_say(one)}: no gateway was lost meanwhile"

    def _lost_gateway(self, one: Ended) -> bool:
        return any(from_s <= one.ended_s and one.began_s <= until_s for from_s, until_s in self.lost)

    def _refused(self) -> Iterator[str]:
        for status, count in sorted(self.statuses.items()):
            if status not in HONEST_STATUSES:
                yield f"{count} requests were answered {status}, whatever became of their retries"
        for why, count in self.reported.rejected.items():
            if why != "too_many_parallel_requests":
                yield f"{count} requests were refused for {why}, of which nobody came near"

    def lines(self) -> Iterator[str]:
        """The figures."""
        fates, by_wait = self.fates, sorted(self.ended, key=lambda one: one.longest_wait_s)
        yield f"{self.name}: {len(self.ended)} requests under {self.deeds} deeds"
        yield "  " + ", ".join(f"{fates[fate]} {fate}" for fate in Fate)
        yield f"  {self.reported}; SDKs asked again {self.asked_again} times"
        if by_wait:
            middle, longest = by_wait[len(by_wait) // 2], by_wait[-1]
            yield f"  silence within a request: {middle.longest_wait_s:.1f} s in the middle, at most {_waited(longest)}"
        yield (
            f"  a gateway took at most {self.most.resident_bytes / (1 << 20):.0f} MB, {self.most.fds:.0f} file "
            f"descriptors, {self.most.open_requests:.0f} requests at a time ({self.most.readings} readings); "
            f"{len(self.findings)} findings"
        )
        yield from (f"  {finding}" for finding in self.findings)
        yield from (f"  BROKEN: {fault}" for fault in self.faults())


def _say(one: Ended) -> str:
    return f"{_named(one)} {one.fate}: {one.words}"


def _waited(one: Ended) -> str:
    return f"{one.longest_wait_s:.1f} s in {_named(one)}"


def _named(one: Ended) -> str:
    requested = one.requested
    how = "stream" if requested.is_streamed else "whole"
    return f"#{requested.number} ({requested.api}, {how}, {requested.tenant}, {requested.most_tokens} tokens)"
