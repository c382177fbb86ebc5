"""What each reason means to operators: cause and action, for docs/reasons.md. No request reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from routing.rejection import Reason


@dataclass(frozen=True, slots=True)
class ReasonText:
    """Why it happens, and what to do."""

    cause: str
    action: str


REASON_TEXTS: Mapping[Reason, ReasonText] = {
    Reason.BAD_REQUEST: ReasonText("A field of the request is invalid.", "Correct the field that `param` names."),
    Reason.BAD_JSON: ReasonText("The body is not JSON, or repeats a field.", "Correct the body."),
    Reason.UNKNOWN_PATH: ReasonText(
        "The gateway does not serve this path.", "Use a path of `docs/configuration.md`; send paths in normal form."
    ),
    Reason.METHOD_NOT_ALLOWED: ReasonText(
        "The path does not serve this HTTP method.", "Use the method that `allow` names."
    ),
    Reason.UNSUPPORTED_MEDIA_TYPE: ReasonText("`content-type` is not JSON.", "Send `application/json`."),
    Reason.BODY_TOO_LARGE: ReasonText(
        "The body exceeds `limits.max_body_bytes`.", "Shorten the prompt or raise the limit."
    ),
    Reason.HEADERS_TOO_LARGE: ReasonText("Head or trailers exceed their limits.", "Send fewer or shorter headers."),
    Reason.URL_TOO_LONG: ReasonText("The request line exceeds its limit.", "Shorten the URL."),
    Reason.REQUEST_TIMEOUT: ReasonText("Head or body did not arrive in time.", "Check the client's network."),
    Reason.EXPECTATION_FAILED: ReasonText("`expect` holds anything but `100-continue`.", "Remove the header."),
    Reason.UNKNOWN_MODEL: ReasonText(
        "No pod and no configuration names this model.", "Ask `GET /v1/models`; check spelling and discovery."
    ),
    Reason.MODEL_NOT_ALLOWED: ReasonText(
        "The tenant's policy does not list this model.", "Add the model to the tenant."
    ),
    Reason.RESPONSE_NOT_FOUND: ReasonText(
        "No stored response of this tenant has this ID.",
        "Send the conversation instead; responses are lost with their pod or a restart of all gateways.",
    ),
    Reason.INVALID_KEY: ReasonText(
        "The API key or token is unknown, expired or revoked.", "Issue a key with `hearth keys new`."
    ),
    Reason.REGION_NOT_ALLOWED: ReasonText(
        "Only pods outside the tenant's regions serve the model.", "Add pods in the region, or label their region."
    ),
    Reason.PROVIDER_NOT_ALLOWED: ReasonText(
        "The model is served by a provider outside the fleet, and the tenant's `providers` names no grant for its "
        "provider, region and model; or the request is `x-hearth-local-only`; or providers are stopped.",
        "Use another model, or add the grant to the policy ([providers.md](providers.md)).",
    ),
    Reason.SUPERSEDED: ReasonText(
        "A newer request carried the same `x-hearth-supersedes` key.", "None: the client asked for it."
    ),
    Reason.RATE_LIMITED_REQUESTS: ReasonText(
        "The tenant's requests per minute are used up.", "Wait for `retry-after`, or raise the limit."
    ),
    Reason.RATE_LIMITED_TOKENS: ReasonText(
        "The tenant's tokens per minute are used up.", "Wait for `retry-after`, or raise the limit."
    ),
    Reason.TOO_MANY_PARALLEL_REQUESTS: ReasonText(
        "The tenant has too many requests in flight.", "Wait for one to end, or raise the limit."
    ),
    Reason.BUDGET_EXHAUSTED: ReasonText(
        "The budget of the period is used up.", "Wait for the next period, or raise the budget."
    ),
    Reason.PROVIDER_LIMIT: ReasonText(
        "A limit on requests to providers outside the fleet is reached: the tenant's `providers_max_budget` or "
        "`providers_max_share`, or the endpoint's `max_parallel_requests`.",
        "Wait, raise the limit, or add engines so that fewer requests have to leave ([providers.md](providers.md)).",
    ),
    Reason.OVERLOADED: ReasonText(
        "No engine can meet the tier's objectives in time.",
        "Retry after `retry-after`; add engines if `hearth_queue_drain_seconds` stays high.",
    ),
    Reason.QUEUE_FULL: ReasonText("The admission queue of the tier is full.", "As for `overloaded`."),
    Reason.QUEUE_TIMEOUT: ReasonText(
        "Behind Envoy, the request waited `extproc.max_queue_s` for an engine. "
        "A wait beyond the tier's `max_queue_s` is `overloaded`.",
        "As for `overloaded`.",
    ),
    Reason.BODY_MEMORY_EXHAUSTED: ReasonText(
        "Request bodies in memory reached `limits.max_total_body_bytes`, or the tenant's share of it.",
        "Retry; add gateways or raise the limit (docs/bounds.md).",
    ),
    Reason.TOO_MANY_CONNECTIONS: ReasonText(
        "Client connections reached `limits.max_connections`.",
        "Retry; add gateways or raise the limit (docs/bounds.md).",
    ),
    Reason.GATEWAY_DRAINING: ReasonText(
        "This gateway is shutting down.", "Retry; the load balancer sends it elsewhere."
    ),
    Reason.GATEWAY_ERROR: ReasonText("A bug in the gateway.", "Report it with the log line."),
    Reason.JWKS_UNAVAILABLE: ReasonText(
        "The token issuer's keys are not available yet.", "Check that the gateway reaches `jwks_url`."
    ),
    Reason.NO_POD_READY: ReasonText(
        "No pod of this model is ready.", "Look at `/fleet`: pods, states and their last errors."
    ),
    Reason.POD_UNREACHABLE: ReasonText("The pod does not accept connections.", "Check the pod and the network."),
    Reason.POD_LOST: ReasonText(
        "The pod closed the connection and no other pod could take over.", "Check the pod's log for a crash."
    ),
    Reason.POD_TIMEOUT: ReasonText("The pod sent no token in time.", "Look for a hung engine: docs/incidents.md."),
    Reason.POD_INVALID_RESPONSE: ReasonText("The pod sent invalid HTTP.", "Check what listens at the pod's address."),
    Reason.POD_BUSY: ReasonText(
        "The pod itself rejected the request as overloaded.", "Retry; compare the pod's limits with its load."
    ),
    Reason.POD_ERROR: ReasonText(
        "Pods answered 5xx, or rejected the gateway's own credentials.", "Check the pod's log."
    ),
}
