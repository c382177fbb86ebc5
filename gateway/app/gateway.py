"""One gateway: all its components, as `build.py` has connected them."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from prometheus_client import CollectorRegistry

from gateway.cascades.cascades import Ladders
from gateway.config.models import ModelEntry
from gateway.config.settings import Settings
from gateway.discovery.file import WatchedFile
from gateway.discovery.source import Static
from gateway.fleet.watcher import Watcher
from gateway.identity.keyring import Keyring
from gateway.kv_index.lookup_client import Asking
from gateway.limits.accounts import Quotas
from gateway.observe.metrics.process import CallbackErrors, make_registry
from gateway.observe.receipts import Receipts
from gateway.observe.request_log import OutcomeLog
from gateway.pipeline.admission_queue import Room
from gateway.pipeline.pipeline import Passage
from gateway.replica_sync.host_client import WarmthClient
from gateway.replica_sync.peer_load import Others
from gateway.runtime.event_log import EventLog
from gateway.server.http_server import Front
from routing.decision.router import Router
from tenancy.admission import Admission
from tenancy.policy import Policy

if TYPE_CHECKING:
    from gateway.ext_proc.server import EnvoyShell  # Protobuf takes six megabytes.


@dataclass(slots=True)
class PodKeys:
    """The API key of all pods; None without one."""

    key: str | None

    def __call__(self, url: str) -> str | None:
        return self.key


@dataclass(slots=True)
class Gateway:
    """All components. A reload changes some of them; see `reload.py`."""

    settings: Settings
    say: EventLog
    logs: dict[str, OutcomeLog]
    prices: dict[str, ModelEntry]
    pod_keys: PodKeys
    keyring: Keyring
    tls: ssl.SSLContext | None
    router: Router
    receipts: Receipts
    probes: aiohttp.ClientSession
    static: Static
    pod_file: WatchedFile | None
    watcher: Watcher
    passage: Passage
    room: Room
    quotas: Quotas
    ladders: Ladders
    front: Front
    others: Others
    errors: CallbackErrors
    """Exception handler of its event loop."""
    registry: CollectorRegistry = field(default_factory=make_registry)
    """All metric collectors."""
    background: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    """Tasks that run until cancelled, as long as the gateway."""
    warmth: WarmthClient | None = None
    """Client of the host's index process; None without one."""
    asking: Asking | None = None
    """Client of the precise prefix index; None if not configured."""
    envoy: EnvoyShell | None = None
    """The ext_proc server; None if not configured."""

    def is_ready(self) -> bool:
        """Return whether new requests are accepted."""
        return self.front.desk.is_ready()

    def go_by(self, policy: Policy | None) -> None:
        """Apply a policy, the first or a new one; requests in flight keep the one they began under."""
        self.keyring.policy = policy
        if policy is None:
            return
        self.quotas.go_by(policy.tenants)
        self.front.desk.keep_headers(policy.headers.names)
        if self.room.admission is None:  # Without a policy there are no SLOs, and no admission control is needed.
            self.room.admit_by(Admission(self.router))
        if self.room.admission is not None:
            self.room.admission.tiers = policy.tiers
