"""Ends requests at endpoints whose link is cut silently (no FIN, no RST), so that they can be answered otherwise.

While a request waits and no byte comes from its endpoint for any request, the link is probed. A slow endpoint answers
the probe, a link that is cut does not. The shares add up to less than `connect_timeout_s`, so a cut is noticed within
that time, or half of it later where a probe was answered just before the cut.
"""

from __future__ import annotations

import asyncio

from gateway.config.providers import ProviderEndpoint
from gateway.providers.link import LinkProbe
from gateway.providers.monitor import ProviderMonitor
from gateway.relay.upstream_pool import UpstreamPool
from gateway.runtime.guard import report_exception, restarted

LOOK_SHARE, SILENT_SHARE, PROBE_SHARE, TRUSTED_SHARE = 0.1, 0.2, 0.6, 0.5
"""Of `connect_timeout_s`: between two looks; silence after which a link is probed; time in which it has to answer; how
long an answer counts.
"""

MIN_LOOK_S = 0.01

LOOP = "provider links"


class LinkWatch:
    """One per gateway process."""

    def __init__(self, monitor: ProviderMonitor, pool: UpstreamPool, probe: LinkProbe) -> None:
        self._monitor = monitor
        self._pool = pool
        self._probe = probe
        self._needed = asyncio.Event()
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._trusted_until_s: dict[str, float] = {}

    def begin(self) -> None:
        """Note that a request is about to be sent."""
        self._needed.set()

    @restarted(LOOP)
    async def run(self) -> None:
        """Watch while requests are under way, until cancelled; probes end with it."""
        async with asyncio.TaskGroup() as probes:
            while True:
                await self._needed.wait()
                busy = [each.config for each in self._monitor if each.open_requests]
                if not busy:
                    self._needed.clear()
                    self._trusted_until_s.clear()
                    continue
                for endpoint in busy:
                    if endpoint.url not in self._probing and self._is_silent(endpoint):
                        self._begin_probe(endpoint, probes)
                await asyncio.sleep(max(MIN_LOOK_S, LOOK_SHARE * min(each.connect_timeout_s for each in busy)))

    def _is_silent(self, endpoint: ProviderEndpoint) -> bool:
        silence_s = self._pool.silence_s(endpoint.url)
        if silence_s is None or silence_s < SILENT_SHARE * endpoint.connect_timeout_s:
            return False
        return self._pool.loop.time() >= self._trusted_until_s.get(endpoint.url, 0.0)

    def _begin_probe(self, endpoint: ProviderEndpoint, probes: asyncio.TaskGroup) -> None:
        task = probes.create_task(self._probe_link(endpoint), name="probe link")
        self._probing[endpoint.url] = task
        task.add_done_callback(lambda _: self._probing.pop(endpoint.url, None))

    async def _probe_link(self, endpoint: ProviderEndpoint) -> None:
        try:
            bound_s = endpoint.connect_timeout_s
            if await self._probe.answers(endpoint, PROBE_SHARE * bound_s):
                self._trusted_until_s[endpoint.url] = self._pool.loop.time() + TRUSTED_SHARE * bound_s
            elif self._is_silent(endpoint):
                self._monitor.note_cut(endpoint.url)
                detail = f"The provider endpoint {endpoint.name} can no longer be reached."
                self._pool.fail_silent(endpoint.url, 0.0, detail)  # Those as well that were sent meanwhile.
        except Exception as error:  # noqa: BLE001 - of one endpoint; the others are watched
            report_exception(LOOP, error)
