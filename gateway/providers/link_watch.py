"""Ends requests at endpoints whose link is cut silently (no FIN, no RST), so that they can be answered otherwise.

While a request waits and no byte comes from its endpoint for any request, the link is probed. A slow endpoint answers
the probe, a link that is cut does not. How long it may take follows the probes that were answered, so that a cut is
noticed within three quarters of `connect_timeout_s` where they take less than a thirteenth of it, and within all of it
and a tenth more on any other link. The first request at an endpoint begins a probe, to have one to follow.
"""

from __future__ import annotations

import asyncio

from gateway.config.providers import ProviderEndpoint
from gateway.providers.link import LinkProbe
from gateway.providers.monitor import ProviderMonitor
from gateway.relay.upstream_pool import UpstreamPool
from gateway.runtime.guard import report_exception, restarted

LOOK_SHARE, SILENT_SHARE, TRUSTED_SHARE = 0.05, 0.2, 0.4
"""Of `connect_timeout_s`: between two looks; silence after which a link is probed; how long an answer counts."""
MIN_PROBE_SHARE, MAX_PROBE_SHARE = 0.3, 0.6
"""Of `connect_timeout_s`, the time in which a probe has to be answered; the latter where none was yet."""
PROBE_FACTOR = 4.0
"""As many times the slowest of the last answered probes a probe may take."""
FORGOTTEN = 0.9
"""Of that slowest one, what is left with each probe that is answered sooner."""

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
        self._took_s: dict[str, float | None] = {}
        """By URL, seconds of the slowest of the last answered probes; None where none was answered."""

    def begin(self) -> None:
        """Note that a request is about to be sent."""
        self._needed.set()

    @restarted(LOOP)
    async def run(self) -> None:
        """Watch while requests are under way, until cancelled."""
        while True:
            await self._needed.wait()
            busy = [each.config for each in self._monitor if each.open_requests]
            if not busy:
                self._needed.clear()
                self._trusted_until_s.clear()
                known = {each.config.url for each in self._monitor}
                self._took_s = {url: took_s for url, took_s in self._took_s.items() if url in known}
                continue
            for endpoint in busy:
                if endpoint.url in self._probing:
                    continue
                if endpoint.url not in self._took_s or self._is_silent(endpoint):
                    self._begin_probe(endpoint)
            await asyncio.sleep(max(MIN_LOOK_S, LOOK_SHARE * min(each.connect_timeout_s for each in busy)))

    def _is_silent(self, endpoint: ProviderEndpoint) -> bool:
        silence_s = self._pool.silence_s(endpoint.url)
        if silence_s is None or silence_s < SILENT_SHARE * endpoint.connect_timeout_s:
            return False
        return self._pool.loop.time() >= self._trusted_until_s.get(endpoint.url, 0.0)

    def _begin_probe(self, endpoint: ProviderEndpoint) -> None:
        task = self._pool.loop.create_task(self._probe_link(endpoint))
        self._probing[endpoint.url] = task
        task.add_done_callback(lambda _: self._probing.pop(endpoint.url, None))

    async def _probe_link(self, endpoint: ProviderEndpoint) -> None:
        try:
            bound_s, began_s = endpoint.connect_timeout_s, self._pool.loop.time()
            took_s = self._took_s.setdefault(endpoint.url, None)
            if await self._probe.answers(endpoint, _probe_s(bound_s, took_s)):
                now_s = self._pool.loop.time()
                self._took_s[endpoint.url] = max(now_s - began_s, FORGOTTEN * (took_s or 0.0))
                self._trusted_until_s[endpoint.url] = now_s + TRUSTED_SHARE * bound_s
            elif self._is_silent(endpoint):
                self._monitor.note_cut(endpoint.url)
                detail = f"The provider endpoint {endpoint.name} can no longer be reached."
                self._pool.fail_silent(endpoint.url, 0.0, detail)  # Those as well that were sent meanwhile.
        except Exception as error:  # noqa: BLE001 - of one endpoint; the others are watched
            report_exception(LOOP, error)


def _probe_s(bound_s: float, took_s: float | None) -> float:
    """Return the seconds in which a probe has to be answered."""
    max_s = MAX_PROBE_SHARE * bound_s
    return max_s if took_s is None else min(max_s, max(MIN_PROBE_SHARE * bound_s, PROBE_FACTOR * took_s))
