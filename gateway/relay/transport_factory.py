"""Makes the carrier of whatever is asked: ours, unless whoever brings the request brings its own."""

from __future__ import annotations

from gateway.config.limits import Limits
from gateway.http.client_request import Asked, Budget
from gateway.http.endpoints import Endpoint
from gateway.http.response_writer import Reply
from gateway.relay.downstream_transport import Carries
from gateway.relay.http_transport import HttpCarrier, PodKeys
from gateway.relay.retry_buffer import Keeping
from gateway.relay.upstream_pool import Pool
from routing.fleet import Fleet


class Carriers:
    """One per desk. `budget` is that of the bodies of all requests that are being read or placed."""

    def __init__(self, fleet: Fleet, pool: Pool, key_of: PodKeys, budget: Budget, limits: Limits) -> None:
        self._fleet = fleet
        self._pool = pool
        self._key_of = key_of
        self._budget = budget
        self._limits = limits
        self.kept_bodies = Budget(limits.kept_bodies_bytes, largest=limits.kept_body_bytes)
        """Of requests whose answers stream, should they have to be gone on with."""

    def make(self, endpoint: Endpoint, asked: Asked, reply: Reply, body: bytes, *, usage_added: bool) -> Carries:
        """For one request, sent with this body."""
        if reply.make_carrier is not None:
            return reply.make_carrier(endpoint, body, usage_added)
        tenant = asked.caller.tenant
        return HttpCarrier(
            asked,
            reply,
            path=endpoint.path,
            body=body,
            usage_added=usage_added,
            pool=self._pool,
            key_of=self._key_of,
            takes_priority=self.takes_priority,
            keeping=Keeping(self.kept_bodies, self._limits, is_off=not tenant.resumes, tenant=tenant.name),
            body_needed_no_more=lambda: asked.drop_body(self._budget),
        )

    def takes_priority(self, url: str) -> bool:
        """Whether the pod at a URL schedules by priority."""
        pod = self._fleet.pod(url)
        return pod is not None and pod.takes_priority
