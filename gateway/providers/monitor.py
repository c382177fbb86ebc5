"""The standing of provider endpoints in the fleet: breakers, `Retry-After`, rejected keys, and the one switch.

The only writer of providers' pods: nothing else discovers or scrapes them. An endpoint that cannot be reached is
probed, without a client's request; one that has failed requests gets the next request after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gateway.config.providers import ProviderEndpoint, ProvidersConfig
from gateway.fleet.breaker import CircuitBreaker
from gateway.pipeline.attempt import AttemptStatus
from gateway.providers.link import LinkProbe
from gateway.runtime.event_log import LogFunction
from gateway.runtime.guard import restarted
from routing.decision.router import Router
from routing.facts import PodFacts
from routing.pods import EngineShape, ModelCard, Pod, PodState

LOOK_S = 0.25
"""Between two looks at endpoints that are not used."""

RECONNECT_S = 1.0
"""Between two attempts to connect to an endpoint that cannot be reached."""

KEY_PAUSE_S = 60.0
"""How long an endpoint that has rejected the key is not used: only an operator can help."""

DEFAULT_HOLD_S, MAX_HOLD_S = 1.0, 300.0
"""How long a busy endpoint without `Retry-After` is left alone at first, and any at most."""


class Hold(StrEnum):
    """Why an endpoint is not used."""

    NONE = "none"
    BUSY = "busy"
    KEY_REJECTED = "key_rejected"
    FAILING = "failing"
    UNREACHABLE = "unreachable"


STATES = {Hold.NONE: PodState.READY, Hold.FAILING: PodState.SUSPECT}
"""States of pods by hold, where one may be chosen. Requests of one tenant may be what fails, so that others' are sent
all the same where nothing else serves the model; cascades answer without it.
"""


@dataclass(slots=True)
class WatchedEndpoint:
    """State of one endpoint; written by the monitor only."""

    config: ProviderEndpoint
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    hold: Hold = Hold.NONE
    until_s: float = 0.0
    """Loop time at which it is tried again."""
    busy_count: int = 0
    """Times in a row that it was busy."""
    open_requests: int = 0
    sent_count: int = 0
    spent: float = 0.0
    """Money since the start, by the prices of `model_list`."""


class ProviderMonitor:
    """One per gateway process."""

    def __init__(
        self,
        router: Router,
        *,
        clock: Callable[[], float],
        log_event: LogFunction,
        probe: LinkProbe,
        warns: bool = True,
    ) -> None:
        """`warns`: whether to log what happens to endpoints; of several workers one does."""
        self._probe = probe
        self._router = router
        self._clock = clock
        self._log_event = log_event
        self._warns = warns
        self._endpoints: dict[str, WatchedEndpoint] = {}
        self._retired: set[str] = set()
        """URLs of endpoints that a reload has removed: a request that was placed there may still be on its way."""
        self._is_enabled = True
        self._is_stopped = False
        self._changed = asyncio.Event()
        self.on_stop: Callable[[str], object] = lambda _: None
        """Called with the URL of each endpoint when providers are stopped: it ends what is under way there."""

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may be sent, by configuration or by an operator."""
        return self._is_stopped or not self._is_enabled

    @property
    def stopped_by_operator(self) -> bool:
        """Whether an operator has stopped providers; a restart forgets that."""
        return self._is_stopped

    def __contains__(self, url: str) -> bool:
        return url in self._endpoints

    def is_outside(self, url: str) -> bool:
        """Return whether a URL is that of an endpoint, or was and is not that of a pod since."""
        return url in self._endpoints or (url in self._retired and self._router.fleet.pod(url) is None)

    def __iter__(self) -> Iterator[WatchedEndpoint]:
        return iter(self._endpoints.values())

    def get(self, url: str) -> WatchedEndpoint | None:
        """Return an endpoint by its URL; None where there is none."""
        return self._endpoints.get(url)

    def is_reachable(self, url: str) -> bool:
        """Return whether an endpoint was reached when it was last tried; False for one that was removed."""
        endpoint = self._endpoints.get(url)
        return endpoint is not None and endpoint.hold is not Hold.UNREACHABLE

    def label_of(self, engine: str) -> str | None:
        """Return `provider/region` of an engine's name; None for engines of the fleet."""
        endpoint = self._endpoints.get(engine)
        return None if endpoint is None else endpoint.config.label

    def show(self) -> dict[str, Any]:
        """Return the endpoints' state as JSON values; no key is among them."""
        endpoints = [
            {
                "name": each.config.name,
                "provider": each.config.provider,
                "region": each.config.region,
                "base_url": each.config.url,
                "models": dict(each.config.models),
                "state": "stopped" if self.is_stopped else "usable" if each.hold is Hold.NONE else each.hold.value,
                "open_requests": each.open_requests,
                "requests": each.sent_count,
                "cost": each.spent,
            }
            for each in self._endpoints.values()
        ]
        return {"stopped": self.is_stopped, "stopped_by_operator": self._is_stopped, "endpoints": endpoints}

    @property
    def models(self) -> frozenset[str]:
        """Models that endpoints serve."""
        return frozenset(model for each in self._endpoints.values() for model in each.config.models)

    def apply(self, config: ProvidersConfig) -> None:
        """Use these endpoints from now on: at the start, and with each reload."""
        before, self._is_enabled = self._is_enabled, config.enabled
        wanted = {each.url: each for each in config.endpoints}
        for url in [url for url in self._endpoints if url not in wanted]:
            del self._endpoints[url]
            self._retired.add(url)
            self._router.remove_pod(url)
        for url, each in wanted.items():
            known = self._endpoints.get(url)
            if known is None:
                self._endpoints[url] = WatchedEndpoint(each)
                self._router.put_pod(_pod(each, PodState.READY))
                self._router.reshape_pod(url, (EngineShape(),))
            else:
                if known.config != each and known.hold is Hold.KEY_REJECTED:
                    known.hold = Hold.NONE  # What was rejected was replaced.
                known.config = each
            self._show(self._endpoints[url])
        if before and not config.enabled:
            self._end_requests()

    def stop(self, *, stopped: bool) -> None:
        """Stop sending anything to any endpoint, and end what is under way; or undo that."""
        if stopped != self._is_stopped:
            self._log_event("warning", "providers_stopped" if stopped else "providers_resumed")
        self._is_stopped = stopped
        for each in self._endpoints.values():
            self._show(each)
        if stopped:
            self._end_requests()

    def _end_requests(self) -> None:
        for url in self._endpoints:
            self.on_stop(url)

    # -- how attempts end --------------------------------------------------------------------------------------------

    def on_attempt_end(self, url: str, end: AttemptStatus) -> bool:
        """Apply the end of an attempt. Returns whether the endpoint was failing others before."""
        endpoint = self._endpoints[url]
        was_failing = endpoint.breaker.is_failing
        if end in (AttemptStatus.OK, AttemptStatus.ESCALATED):
            endpoint.breaker, endpoint.busy_count = endpoint.breaker.on_success(), 0
        elif end is AttemptStatus.UNREACHABLE:
            endpoint.breaker = endpoint.breaker.on_unreachable(self._clock())
            self._hold(endpoint, Hold.UNREACHABLE, RECONNECT_S)
        elif end.is_pod_failure and endpoint.hold not in (Hold.KEY_REJECTED, Hold.BUSY, Hold.UNREACHABLE):
            was_open, endpoint.breaker = endpoint.breaker.is_open, endpoint.breaker.on_failure(self._clock())
            if endpoint.breaker.is_open and not was_open:
                self._hold(endpoint, Hold.FAILING, endpoint.breaker.cooldown_s)
        return was_failing

    def note_cut(self, url: str) -> None:
        """Stop using an endpoint that does not answer any more, until it does."""
        endpoint = self._endpoints.get(url)
        if endpoint is not None and endpoint.hold not in (Hold.KEY_REJECTED, Hold.BUSY):
            self._hold(endpoint, Hold.UNREACHABLE, RECONNECT_S)

    def note_busy(self, url: str, retry_after_s: float | None) -> None:
        """Leave an endpoint alone that has answered 429, 503 or 529: as long as it says, else ever longer."""
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            return
        endpoint.busy_count += 1
        own_s = DEFAULT_HOLD_S * 2.0 ** min(endpoint.busy_count - 1, 8)
        self._hold(endpoint, Hold.BUSY, min(MAX_HOLD_S, own_s if retry_after_s is None else max(retry_after_s, 0.1)))

    def note_key_rejected(self, url: str, status: int) -> None:
        """Stop using an endpoint that rejects the key or the account."""
        endpoint = self._endpoints.get(url)
        if endpoint is not None:
            self._hold(endpoint, Hold.KEY_REJECTED, KEY_PAUSE_S, status=status)

    def _hold(self, endpoint: WatchedEndpoint, hold: Hold, pause_s: float, **more: object) -> None:
        if endpoint.hold is not hold and self._warns:
            self._log_event(
                "warning", "provider_held", endpoint=endpoint.config.name, reason=hold.value, pause_s=pause_s, **more
            )
        endpoint.hold, endpoint.until_s = hold, self._clock() + pause_s
        self._show(endpoint)
        self._changed.set()

    # -- trying again ------------------------------------------------------------------------------------------------

    @restarted("providers")
    async def run(self) -> None:
        """Try endpoints again that are not used, until cancelled."""
        while True:
            held = [each for each in self._endpoints.values() if each.hold is not Hold.NONE]
            if not held:
                self._changed.clear()
                await self._changed.wait()
                continue
            async with asyncio.TaskGroup() as group:
                for each in held:
                    if self._clock() >= each.until_s:
                        group.create_task(self._retry(each))
            await asyncio.sleep(LOOK_S)

    async def _retry(self, endpoint: WatchedEndpoint) -> None:
        hold = endpoint.hold
        config = endpoint.config
        if hold is Hold.UNREACHABLE and not await self._probe.answers(config, config.connect_timeout_s):
            endpoint.until_s = self._clock() + RECONNECT_S
            return
        if endpoint.hold is not hold or self._endpoints.get(endpoint.config.url) is not endpoint:
            return  # Meanwhile an attempt has found out more, or a reload has removed it.
        endpoint.breaker = endpoint.breaker.on_healthy_probe(max(self._clock(), endpoint.breaker.open_until_s))
        endpoint.hold = Hold.NONE
        if self._warns:
            self._log_event("info", "provider_released", endpoint=endpoint.config.name)
        self._show(endpoint)

    def _show(self, endpoint: WatchedEndpoint) -> None:
        state = STATES.get(endpoint.hold, PodState.OPEN_CIRCUIT)
        known = self._router.fleet.pod(endpoint.config.url)
        if self.is_stopped:
            state = PodState.DRAINING
        shown = _pod(endpoint.config, state)
        if known is not None and known.state is state and replace(shown, engines=known.engines) == known:
            return
        engines = known.engines if known is not None else ()
        self._router.put_pod(replace(shown, engines=engines))


def _pod(endpoint: ProviderEndpoint, state: PodState) -> Pod:
    return Pod(
        endpoint.url,
        state,
        models=frozenset(endpoint.models),
        cards=tuple(ModelCard(model) for model in endpoint.models),
        pool=f"provider:{endpoint.provider}",
        region=endpoint.region,
        facts=PodFacts(region=endpoint.region, spill_rank=endpoint.rank),
        distance_s=endpoint.distance_s,
        ready_since_s=float("-inf"),
        provider=endpoint.provider,
    )
