"""One gateway: all its parts, as `build.py` has put them together. Knows how none of them is made."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from prometheus_client import CollectorRegistry

from gateway.cascades.cascades import Ladders
from gateway.cluster.host_client import WarmthClient
from gateway.cluster.peer_load import Others
from gateway.config.models import ModelEntry
from gateway.config.values import Settings
from gateway.discovery.file import WatchedFile
from gateway.discovery.static import Static
from gateway.fleet.watcher import Watcher
from gateway.http.listener import Front
from gateway.identity.keyring import Keyring
from gateway.kv_index.lookup_client import Asking
from gateway.limits.accounts import Quotas
from gateway.observe.log import EventLog, OutcomeLog
from gateway.observe.metrics.callback_errors import CallbackErrors
from gateway.observe.metrics.collector import make_registry
from gateway.observe.receipts import Receipts
from gateway.pipeline.admission_queue import Room
from gateway.pipeline.pipeline import Passage
from routing.decision.router import Router
from tenancy.admission import Admission
from tenancy.policy import Policy

if TYPE_CHECKING:
    from gateway.ext_proc.setup import EnvoyShell  # Protobuf takes six megabytes.


@dataclass(slots=True)
class PodKeys:
    """The key that pods want, for all of them the same."""

    key: str | None

    def __call__(self, url: str) -> str | None:
        return self.key


@dataclass(slots=True)
class Life:
    """Whether the gateway is on its way out."""

    is_stopping: bool = False


@dataclass(slots=True)
class Gateway:
    """A reload puts new values into some of its parts; see `reload.py`."""

    settings: Settings
    life: Life
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
    """The exception handler of its event loop."""
    registry: CollectorRegistry = field(default_factory=make_registry)
    """Of what is shown as metrics."""
    background: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    """What runs until it is cancelled, while the gateway does."""
    warmth: WarmthClient | None = None
    """The warmth process of the host, where there is one."""
    asking: Asking | None = None
    """Exact warmth, where it is wanted."""
    envoy: EnvoyShell | None = None
    """Where Envoy sends us requests, if it does."""

    def is_ready(self) -> bool:
        """Whether new requests are welcome."""
        return not self.life.is_stopping and self.watcher.is_ready()

    def go_by(self, policy: Policy | None) -> None:
        """Take up a policy, the first or another; who is being served keeps what it came under."""
        self.keyring.policy = policy
        if policy is None:
            return
        self.quotas.go_by(policy.tenants)
        self.front.heed_headers(policy.headers.names)
        if self.room.admission is None:  # Without a policy nothing is promised, and nothing need be watched for it.
            self.room.admit_by(Admission(self.router))
        if self.room.admission is not None:
            self.room.admission.tiers = policy.tiers
