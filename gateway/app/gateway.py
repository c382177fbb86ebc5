"""One gateway: all its components, as `build.py` has connected them."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from prometheus_client import CollectorRegistry

from gateway.cascades.cascades import Cascades
from gateway.config.models import ModelEntry
from gateway.config.settings import Settings
from gateway.diagnosis.doctor import Doctor
from gateway.diagnosis.effects import EffectsLease, FindingEffects
from gateway.discovery.file import PodFileSource
from gateway.discovery.source import StaticSource
from gateway.fleet.watcher import FleetWatcher
from gateway.identity.keyring import Keyring
from gateway.kv_index.lookup_client import CacheLookupClient
from gateway.limits.accounts import QuotaEnforcer
from gateway.observe.metrics.cascades import CascadeCounters
from gateway.observe.metrics.configuration import ReloadStatus
from gateway.observe.metrics.process import CallbackErrorHandler, make_registry
from gateway.observe.metrics.requests import RequestCounters
from gateway.observe.operators.outcome_totals import OutcomeTotals
from gateway.observe.receipts import ReceiptStore
from gateway.observe.request_log import OutcomeLog
from gateway.pipeline.admission_queue import AdmissionQueue
from gateway.pipeline.pipeline import RequestPipeline
from gateway.relay.http_transport import PodKeys
from gateway.replica_sync.host_client import IndexProcessClient
from gateway.replica_sync.peer_load import PeerLoad
from gateway.replica_sync.sync import ReplicaSync
from gateway.runtime.event_log import EventLog
from gateway.server.http_server import HttpServer
from routing.decision.router import Router
from tenancy.admission import Admission
from tenancy.policy import Policy

if TYPE_CHECKING:
    from gateway.canary.controller import CanaryController
    from gateway.ext_proc.server import ExtProcServer  # Protobuf takes six megabytes.
    from gateway.providers.monitor import ProviderMonitor
    from gateway.scaling.controller import SupplyController
    from gateway.tracing.tracing import Tracing
    from gateway.warmup.controller import WarmupController


@dataclass(slots=True)
class Gateway:
    """All components. A reload changes some of them; see `reload.py`."""

    settings: Settings
    log_event: EventLog
    logs: dict[str, OutcomeLog]
    model_entries: dict[str, ModelEntry]
    pod_keys: PodKeys
    keyring: Keyring
    tls: ssl.SSLContext | None
    router: Router
    receipts: ReceiptStore
    probes: aiohttp.ClientSession
    static: StaticSource
    pod_file: PodFileSource | None
    watcher: FleetWatcher
    pipeline: RequestPipeline
    admission_queue: AdmissionQueue
    quotas: QuotaEnforcer
    cascades: Cascades
    listener: HttpServer
    peer_load: PeerLoad
    totals: OutcomeTotals
    """Totals of requests for the operators' page."""
    request_counters: RequestCounters
    cascade_counters: CascadeCounters
    callback_errors: CallbackErrorHandler
    """Exception handler of its event loop."""
    reloads: ReloadStatus = field(default_factory=lambda: ReloadStatus(time.time))
    """The last reloads of this process; with several the supervisor's count."""
    registry: CollectorRegistry = field(default_factory=make_registry)
    """All metric collectors."""
    background: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    """Tasks that run until cancelled, as long as the gateway."""
    index_client: IndexProcessClient | None = None
    """Client of the host's index process; None without one."""
    replica_sync: ReplicaSync | None = None
    """Exchange of updates with other gateways; None without an index process."""
    cache_lookup: CacheLookupClient | None = None
    """Client of the precise prefix index; None if not configured."""
    ext_proc: ExtProcServer | None = None
    """The ext_proc server; None if not configured."""
    providers: ProviderMonitor | None = None
    """Endpoints outside the fleet; None if none is configured."""
    tracing: Tracing | None = None
    """Traces; None if not configured."""
    supply: SupplyController | None = None
    """Desired engines; None if not configured."""
    warmup: WarmupController | None = None
    """Warm-up of new pods; None if not configured."""
    canary: CanaryController | None = None
    """Pods on trial; None if none are configured to be."""
    doctor: Doctor | None = None
    """Diagnosis of the fleet; None where it is off, or another worker of the host does it."""
    share_effects: Callable[[FindingEffects], object] = lambda _: None
    """Has the other workers of the host apply the effects of findings."""
    _effects_lease: EffectsLease | None = None

    def is_ready(self) -> bool:
        """Return whether new requests are accepted."""
        return self.listener.dispatcher.is_ready()

    def apply_effects(self, effects: FindingEffects) -> None:
        """Apply what findings change: exactly this, and nothing of before, until its lease ends."""
        if self._effects_lease is None:
            call_later = asyncio.get_running_loop().call_later
            self._effects_lease = EffectsLease(self._put_in_force, call_later, self.log_event)
        self._effects_lease.apply(effects)

    def _put_in_force(self, effects: FindingEffects) -> None:
        self.watcher.hold_for_findings(effects.held)
        self.router.set_token_excess(effects.constrained_excess_s, effects.plain_excess_s)

    def share_admission(self) -> None:
        """Have replica sync exchange what is admitted, where there are both."""
        admission = self.admission_queue.admission
        if self.replica_sync is not None and admission is not None:
            self.replica_sync.share_admission(admission)

    def apply_policy(self, policy: Policy | None) -> None:
        """Apply a policy, the first or a new one; requests in flight keep the one they began under."""
        self.keyring.policy = policy
        if self.warmup is not None:
            self.warmup.prompts.clear()  # It may forbid what was kept.
        if policy is None:
            return
        self.quotas.apply_policy(policy.tenants)
        self.listener.dispatcher.keep_headers(policy.headers.names)
        if (
            self.admission_queue.admission is None
        ):  # Without a policy there are no SLOs, and no admission control is needed.
            admission = Admission(self.router)
            if self.settings.redis is None:
                admission.share_engines(self.settings.gateways)
            self.admission_queue.set_admission(admission)
            self.share_admission()
        if self.admission_queue.admission is not None:
            self.admission_queue.admission.set_tiers(policy.tiers)
