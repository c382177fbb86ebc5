"""The gate and the router against a policy read by other words: no request reaches what its tenant does not name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.models import ModelEntry
from gateway.config.providers import ProviderApi, ProviderEndpoint, ProvidersConfig
from gateway.kv_index.lookup_client import fleet_update
from gateway.limits.accounts import make_quota_enforcer
from gateway.providers.bodies import outgoing_body
from gateway.providers.gate import Permit, ProviderGate
from gateway.providers.monitor import ProviderMonitor
from routing.decision.router import Router
from routing.fleet import eligible_for
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import RequestRejected
from routing.request import Api, Request
from scorers.registry import routings
from tenancy.tenants import Tenant

PROVIDERS, REGIONS, MODELS = ("acme", "claude"), ("eu", "us"), ("cloud", "large")

ENDPOINTS = tuple(
    ProviderEndpoint(
        f"{provider}-{region}",
        provider,
        region,
        f"https://{provider}-{region}.example",
        ProviderApi.OPENAI,
        {model: f"{provider}-{model}" for model in MODELS},
    )
    for provider in PROVIDERS
    for region in REGIONS
)

BODY = msgspec.json.encode({"model": "x", "messages": [{"role": "user", "content": "canary"}], "user": "ann"})

triples = st.tuples(st.sampled_from(PROVIDERS), st.sampled_from(REGIONS), st.sampled_from(MODELS))
tenants = st.builds(
    Tenant,
    name=st.just("one"),
    grants=st.frozensets(triples, max_size=5),
    regions=st.one_of(st.none(), st.frozensets(st.sampled_from((*REGIONS, "on-prem")), min_size=1)),
    trust_domain=st.one_of(st.none(), st.just("tenant:one")),
)


def a_gate(endpoints: Sequence[ProviderEndpoint] = ENDPOINTS) -> tuple[ProviderGate, Router]:
    """A gate over a router with one pod of the fleet and all endpoints."""
    router = Router(routings()["warm"])
    router.put_pod(Pod("http://pod", PodState.READY, frozenset({"small"}), region="on-prem"))
    router.reshape_pod("http://pod", (EngineShape(),))
    prices = {model: ModelEntry(model, 1e-6, 2e-6) for model in MODELS}
    quotas = make_quota_enforcer(router, prices, lambda: False, clock=lambda: 1.0, draw=lambda: 0.5)
    monitor = ProviderMonitor(router, clock=lambda: 1.0, log_event=lambda *_, **__: None)
    monitor.apply(ProvidersConfig(endpoints=tuple(endpoints)))
    return ProviderGate(monitor, quotas), router


def may_leave(tenant: Tenant, endpoint: ProviderEndpoint, model: str) -> bool:
    """The policy in other words than the gate's."""
    names = any(
        provider == endpoint.provider and region == endpoint.region and named == model
        for provider, region, named in tenant.grants
    )
    is_at_home = tenant.regions is None or endpoint.region in tenant.regions
    return names and is_at_home and tenant.trust_domain is None


@given(tenants, st.sampled_from(ENDPOINTS), st.sampled_from((*MODELS, "small")), st.booleans(), st.booleans())
def test_the_gate_permits_what_the_policy_names_and_nothing_else(
    tenant: Tenant, endpoint: ProviderEndpoint, model: str, local_only: bool, continues: bool
) -> None:
    """Whatever the routing has decided; a permitted body holds listed fields only."""
    gate, _ = a_gate()
    request = Request("r", Api.CHAT, model, max_tokens=10)
    permit = asyncio.run(
        gate.permit(endpoint.url, tenant, request, BODY, is_local_only=local_only, is_continuation=continues)
    )
    allowed = may_leave(tenant, endpoint, model) and not local_only and not continues
    assert isinstance(permit, Permit) == allowed
    if isinstance(permit, Permit):
        sent = msgspec.json.decode(permit.body.content)
        assert set(sent) == {"model", "messages", "max_tokens"}
        assert sent["model"] == endpoint.models[model]


@given(tenants, st.sampled_from((*MODELS, "small")))
def test_the_router_never_chooses_a_forbidden_provider(tenant: Tenant, model: str) -> None:
    """Without a grant, or in another region, the request is rejected rather than placed there."""
    gate, router = a_gate()
    request = Request("r", Api.CHAT, model, regions=tenant.regions, grants=tenant.grants)
    try:
        engines = eligible_for(router.fleet, request, frozenset()).engines
    except RequestRejected:
        engines = ()
    for engine in engines:
        watched = gate.monitor.get(engine.pod)
        if watched is not None:
            assert (watched.config.provider, watched.config.region, model) in tenant.grants
            assert tenant.regions is None or watched.config.region in tenant.regions


def test_the_index_process_is_not_sent_to_providers() -> None:
    """It sends prompts to the pods that it follows, to have them tokenized."""
    _, router = a_gate()
    assert [pod.url for pod in fleet_update(router.fleet, {}).pods] == ["http://pod"]


def test_a_stopped_gate_permits_nothing() -> None:
    """By the switch of the operator, and by the configuration."""
    tenant = Tenant("one", grants=frozenset({("acme", "eu", "cloud")}))

    def is_permitted(gate: ProviderGate) -> bool:
        request = Request("r", Api.CHAT, "cloud")
        found = asyncio.run(
            gate.permit(ENDPOINTS[0].url, tenant, request, BODY, is_local_only=False, is_continuation=False)
        )
        return isinstance(found, Permit)

    gate, _ = a_gate()
    assert is_permitted(gate)
    gate.monitor.stop(stopped=True)
    assert not is_permitted(gate)
    gate.monitor.stop(stopped=False)
    gate.monitor.apply(ProvidersConfig(enabled=False, endpoints=ENDPOINTS))
    assert not is_permitted(gate)


@pytest.mark.parametrize("field", ["user", "metadata", "cache_salt", "priority", "hearth", "store", "vllm_xargs"])
@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES, Api.RESPONSES, Api.COMPLETIONS])
def test_fields_that_are_not_listed_stay(api: Api, field: str) -> None:
    """In every API; `store` of responses is set to false."""
    body: dict[str, Any] = {"model": "x", "messages": [], "input": "Hi", "prompt": "Hi", field: "canary"}
    sent = outgoing_body(ENDPOINTS[0], api, msgspec.json.encode(body), "cloud")
    assert b"canary" not in sent.content
    assert sent.max_output_tokens == ENDPOINTS[0].max_output_tokens
