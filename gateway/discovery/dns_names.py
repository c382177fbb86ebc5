"""Pods behind a name in DNS, asked for again as its records run out.

A name without records is an answer: there are no pods. But a resolver that has just lost its upstream may say so too:
it counts when it is said twice. While DNS gives no answer at all the last list stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.config.discovery import DnsPlace, Found
from gateway.discovery.lookup import Hosts, Lookup, Outage
from gateway.discovery.source import Tell

Say = Callable[..., None]


class Asked(Protocol):
    """Who knows the hosts behind the name."""

    async def hosts(self) -> Hosts:
        """All of them now. Raises `Outage`."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """In seconds."""

    least_s: float = 1.0
    """Between two questions, however short records hold."""
    jitter: float = 0.1
    """Share by which every pause is drawn shorter: many gateways must not ask at once."""


class DnsNames:
    """One per place."""

    def __init__(
        self,
        place: DnsPlace,
        *,
        say: Say,
        draw: Callable[[], float],
        pace: Pace | None = None,
        asked: Callable[[DnsPlace], Asked] = Lookup,
    ) -> None:
        self.name = f"dns:{place.name}" + (f":{place.port}" if place.port else "")
        self.trouble = ""
        self._place = place
        self._say = say
        self._draw = draw
        self._pace = pace or Pace()
        self._asked = asked
        self._last: tuple[Found, ...] = ()

    async def follow(self, tell: Tell) -> None:
        """Tell the pods whenever DNS has answered, until cancelled."""
        pause_s, lookup = self._pace.least_s, None
        while True:
            try:
                lookup = lookup or self._asked(self._place)
                hosts = await lookup.hosts()
            except* Outage as outages:
                self._note_outage(str(outages.exceptions[0]))
                pause_s = min(2 * pause_s, self._place.longest_s)
            else:
                self._note_answer()
                pause_s = self._take(hosts, tell)
            await asyncio.sleep(pause_s * (1 - self._pace.jitter * self._draw()))

    def _take(self, hosts: Hosts, tell: Tell) -> float:
        """Tell what was found. Returns the seconds until the next question."""
        found = tuple(self._found(host, port) for host, port in hosts.found)
        is_doubtful, self._last = not found and bool(self._last), found
        if is_doubtful:
            return self._pace.least_s
        tell(found)
        return max(self._pace.least_s, min(hosts.ttl_s, self._place.longest_s))

    def _found(self, host: str, port: int) -> Found:
        place = self._place
        return Found(f"{place.scheme}://{f'[{host}]' if ':' in host else host}:{port}", place.pool, place.facts)

    def _note_outage(self, words: str) -> None:
        if not self.trouble:
            self._say("warning", "DNS gives no answer, the last list of pods stands", source=self.name, error=words)
        self.trouble = words

    def _note_answer(self) -> None:
        if self.trouble:
            self._say("info", "DNS answers again", source=self.name)
        self.trouble = ""
