"""Reports prefill pods that no connector can use: once each, with what to do. Requests go on without them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.runtime.guard import restarted
from routing.decision.router import Router
from routing.pairing.partners import UnpairedReason, unpaired

LOOK_S = 1.0

SETTLED_S = 10.0
"""Pods of a split come up one after the other: one that is alone for a shorter time is not reported."""


class UnpairedPrefillMonitor:
    """One per gateway."""

    def __init__(self, router: Router, say: Callable[..., None], clock: Callable[[], float]) -> None:
        self._router = router
        self._say = say
        self._clock = clock
        self._version = -1
        self._found: dict[str, UnpairedReason] = {}
        self._since_s: dict[str, float] = {}
        self._reported: dict[str, UnpairedReason] = {}

    @restarted("unpaired pods")
    async def run(self) -> None:
        """Look every second, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Report pods that have been unpaired for a while, unless the same was reported of them."""
        fleet, now_s = self._router.fleet, self._clock()
        if fleet.version != self._version:
            self._version = fleet.version
            self._found = unpaired(fleet, self._router.pairing.connectors)
            self._since_s = {url: self._since_s.get(url, now_s) for url in self._found}
            present = {pod.url for pod in fleet.pods}
            self._reported = {url: why for url, why in self._reported.items() if url in present}
        for url, why in self._found.items():
            if self._reported.get(url) is not why and now_s - self._since_s[url] >= SETTLED_S:
                self._reported[url] = why
                connector = pod.facts.kv_connector if (pod := fleet.pod(url)) else None
                self._say("warning", "prefill pod is in no pair", pod=url, kv_connector=connector, fix=why.value)
