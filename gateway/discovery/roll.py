"""Which agents have spoken, what pods they told, and until when their word counts. Decides; asks nobody.

An agent's word counts for its `ttl_s` after it was given. That its key is gone is no word: a Redis that was emptied or
started anew looks the same, and the agent speaks again one beat later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter

from gateway.config.discovery import Found
from gateway.discovery.record import Record, Registered, State
from routing.pods import Standing

MOST_AGENTS = 4096
"""Who writes into Redis must not be able to fill our memory."""

MOST_PODS = 8192
"""Of all agents together: each pod is looked at every second."""


@dataclass(frozen=True, slots=True)
class Word:
    """What an agent said last, and until when that counts."""

    life: int
    beat: int
    ttl_s: float
    found: tuple[Found, ...]
    """None for a while after a goodbye: an older word that comes late must not bring its pods back."""
    until_s: float


class Roll:
    """Mutable. Time is an argument."""

    def __init__(self, *, most: int = MOST_AGENTS, most_pods: int = MOST_PODS) -> None:
        self._words: dict[str, Word] = {}
        self._most = most
        self._most_pods = most_pods
        self._pods = 0

    def knows(self, agent: str) -> bool:
        return agent in self._words

    def take(self, record: Record, now_s: float, *, left_s: float | None = None) -> bool:
        """Take an agent's word, unless a later one is known or there is no room: who was there first stays. True where
        its pods are others than before.

        `left_s`: how long the word still counts, where it may be old.
        """
        known = self._words.get(record.agent)
        if known is not None and known.life == record.life and known.beat >= record.beat:
            return False
        more = len(record.pods) - (len(known.found) if known is not None else 0)
        if (known is None and len(self._words) >= self._most) or (more > 0 and self._pods + more > self._most_pods):
            return False
        self._pods += more
        counts_s = record.ttl_s if left_s is None else min(left_s, record.ttl_s)
        found = tuple(map(_found, record.pods))
        self._words[record.agent] = Word(record.life, record.beat, record.ttl_s, found, now_s + counts_s)
        return known is None or known.found != found

    def expire(self, now_s: float) -> bool:
        """Forget whose word counts no more. True where there was any."""
        kept = {agent: word for agent, word in self._words.items() if word.until_s > now_s}
        is_less, self._words = len(kept) < len(self._words), kept
        self._pods = sum(len(word.found) for word in kept.values())
        return is_less

    def wait_on(self, now_s: float) -> None:
        """Nobody could be heard for a while: give everybody the time to speak again."""
        for agent, word in self._words.items():
            self._words[agent] = replace(word, until_s=max(word.until_s, now_s + word.ttl_s))

    def found(self) -> tuple[Found, ...]:
        """The pods of all agents; one that two of them tell of is as the first by name has it."""
        pods: dict[str, Found] = {}
        for _, word in sorted(self._words.items(), key=itemgetter(0)):
            for pod in word.found:
                pods.setdefault(pod.url, pod)
        return tuple(pods.values())


def _found(pod: Registered) -> Found:
    held = Standing.DRAINING if pod.state is State.DRAINING else None
    return Found(pod.url, facts=pod.facts, takes_priority=pod.takes_priority, held=held)
