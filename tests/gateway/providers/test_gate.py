"""The gate and the router against a policy read by other words: no request reaches what its tenant does not name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.config.models import ModelEntry
from gateway.config.providers import ProviderApi, ProviderEndpoint, ProvidersConfig
from gateway.kv_index.lookup_client import fleet_update
from gateway.limits.accounts import make_quota_enforcer
from gateway.pipeline.attempt import AttemptStatus
from gateway.providers.bodies import outgoing_body
from gateway.providers.gate import Denial, Permit, ProviderGate, TenantShare
from gateway.providers.link import LinkProbe
from gateway.providers.monitor import ProviderMonitor
from gateway.providers.translation import Untranslatable
from routing.decision.router import Router
from routing.fleet import eligible_for
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import RequestRejected
from routing.request import Api, Request, Usage
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
    monitor = ProviderMonitor(router, clock=lambda: 1.0, log_event=lambda *_, **__: None, probe=LinkProbe())
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


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.RESPONSES, {"input": "Hi", "tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}),
        (Api.RESPONSES, {"input": "Hi", "tools": [{"type": "mcp", "server_url": "https://x.example"}]}),
        (Api.RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        (Api.RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]}),
        (Api.CHAT, {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}),
        (
            Api.MESSAGES,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}],
                            }
                        ],
                    }
                ]
            },
        ),
        (Api.MESSAGES, {"messages": [], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ],
)
def test_what_acts_with_the_gateways_key_at_a_provider_stays(api: Api, body: dict[str, Any]) -> None:
    """Tools that the provider runs, and content that others may have stored under the same key."""
    endpoint = ENDPOINTS[0] if api is not Api.MESSAGES else replace(ENDPOINTS[0], api=ProviderApi.ANTHROPIC)
    with pytest.raises(Untranslatable):
        outgoing_body(endpoint, api, msgspec.json.encode(body), "cloud")


@pytest.mark.parametrize("kind", [[], {}, 5, True])
def test_a_tool_whose_type_is_no_text_stays(kind: object) -> None:
    """It is the client's fault, and no failure of the gateway."""
    with pytest.raises(Untranslatable, match="tools of type"):
        outgoing_body(ENDPOINTS[0], Api.CHAT, msgspec.json.encode({"messages": [], "tools": [{"type": kind}]}), "cloud")
    part = {"type": "image_url", "image_url": [{"type": kind}]}
    body = msgspec.json.encode({"messages": [{"role": "user", "content": [part]}]})
    assert outgoing_body(ENDPOINTS[0], Api.CHAT, body, "cloud").path


def test_tools_of_the_client_go_out() -> None:
    """With arguments of any name."""
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"file_id": "file-1"}'}}
    tool = {"type": "function", "function": {"name": "read", "parameters": {"properties": {"file_id": {}}}}}
    body = {"messages": [{"role": "assistant", "tool_calls": [call]}], "tools": [tool]}
    sent = outgoing_body(ENDPOINTS[0], Api.CHAT, msgspec.json.encode(body), "cloud")
    assert msgspec.json.decode(sent.content)["tools"] == [tool]


def test_every_prompt_of_a_completion_is_reserved_for() -> None:
    """Each has as many answers as `n` says."""
    body = msgspec.json.encode({"prompt": ["a", "b", "c"], "max_tokens": 10, "n": 2})
    assert outgoing_body(ENDPOINTS[0], Api.COMPLETIONS, body, "cloud").max_output_tokens == 60


GRANTED = Tenant("one", grants=frozenset({("acme", "eu", "cloud")}), provider_budget=1.0)


async def permit_of(gate: ProviderGate, tenant: Tenant = GRANTED) -> Permit | Denial:
    request = Request("r", Api.CHAT, "cloud", max_tokens=10)
    return await gate.permit(ENDPOINTS[0].url, tenant, request, BODY, is_local_only=False, is_continuation=False)


async def test_the_policy_of_now_counts() -> None:
    """A grant that was removed while a request waited permits nothing, nor does a tenant that was removed."""
    gate, _ = a_gate()
    gate._quotas.apply_policy({"one": GRANTED})
    assert isinstance(await permit_of(gate), Permit)
    gate._quotas.apply_policy({"one": replace(GRANTED, grants=frozenset())})
    assert isinstance(await permit_of(gate), Denial)
    gate._quotas.apply_policy({})
    assert isinstance(await permit_of(gate), Denial)


async def test_a_permit_ends_with_its_grant() -> None:
    """While a connection opens, the policy may be loaded again: then nothing is sent any more."""
    gate, _ = a_gate()
    gate._quotas.apply_policy({"one": GRANTED})
    permit = await permit_of(gate)
    assert isinstance(permit, Permit)
    assert gate.is_valid(permit)
    gate._quotas.apply_policy({"one": replace(GRANTED, regions=frozenset({"on-prem"}))})
    assert not gate.is_valid(permit)
    gate._quotas.apply_policy({"one": GRANTED})
    assert gate.is_valid(permit)
    gate.monitor.stop(stopped=True)
    assert not gate.is_valid(permit)


@pytest.mark.parametrize("processes", [1, 3, 100])
async def test_processes_divide_parallel_requests(processes: int) -> None:
    """All of them together have as many at one time as the endpoint takes; each has one at least."""
    gate, _ = a_gate((replace(ENDPOINTS[0], max_parallel_requests=7),))
    divided = ProviderGate(gate.monitor, gate._quotas, processes)
    permitted = 0
    while isinstance(permit := await permit_of(divided), Permit):
        permitted += 1
        permit.close(None, 1.0, was_sent=True)
        permit.endpoint.open_requests = permitted
    assert permitted == max(1, 7 // processes)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=400), st.sampled_from((0.05, 0.2, 0.5)))
def test_shares_of_processes_add_up(requests: list[int], max_share: float) -> None:
    """However requests fall on processes that know nothing of each other, the share of all is never above the limit."""
    shares = [TenantShare() for _ in range(4)]
    sent = 0
    for total, process in enumerate(requests):
        if shares[process].may_send(max_share):
            shares[process].count_sent()
            sent += 1
        shares[process].count_request()
        assert sent <= max_share * (total + 1) + 1e-9


@pytest.mark.parametrize("what", ["stop", "region", "grant"])
async def test_what_changes_while_money_is_reserved_counts(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is permitted, and the money is given back."""
    gate, _ = a_gate()
    gate._quotas.apply_policy({"one": GRANTED})
    reserve_on = gate._quotas.reserve_on

    async def reserve_late(*args: Any) -> Any:
        held = await reserve_on(*args)
        if what == "stop":
            gate.monitor.stop(stopped=True)
        elif what == "grant":
            gate._quotas.apply_policy({"one": replace(GRANTED, grants=frozenset())})
        else:
            moved = (replace(ENDPOINTS[0], max_output_tokens=9), *ENDPOINTS[1:])
            gate.monitor.apply(ProvidersConfig(endpoints=moved))
        held_then.append(held)
        return held

    held_then: list[Any] = []
    monkeypatch.setattr(gate._quotas, "reserve_on", reserve_late)
    assert isinstance(await permit_of(gate), Denial)
    assert not held_then[0].is_open
    assert held_then[0].held.cost == 0


async def test_a_counted_answer_alone_does_not_settle_the_prompt() -> None:
    """A stream that a cascade has discarded reports no usage: what was reserved stays charged."""
    gate, _ = a_gate()
    permit = await permit_of(gate)
    assert isinstance(permit, Permit)
    endpoint = gate.monitor.get(ENDPOINTS[0].url)
    assert endpoint is not None
    gate.close(permit, Usage(0, 3), was_sent=True)
    assert endpoint.spent >= len(permit.body.content) / 2 * 1e-6


async def test_a_removed_endpoint_is_no_pod() -> None:
    """Neither for a request that was placed there, nor after a connection that was tried meanwhile; a pod is one."""
    gate, router = a_gate()
    url = ENDPOINTS[0].url
    gate.monitor.on_attempt_end(url, AttemptStatus.UNREACHABLE)
    held = gate.monitor.get(url)
    assert held is not None

    async def answers(*_: object) -> bool:
        gate.monitor.apply(ProvidersConfig(endpoints=ENDPOINTS[1:]))
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LinkProbe, "answers", answers)
        await gate.monitor._retry(held)
    assert router.fleet.pod(url) is None
    assert gate.serves(url)
    assert isinstance(await permit_of(gate), Denial)
    router.put_pod(Pod(url, PodState.READY, frozenset({"small"})))
    assert not gate.serves(url)


def test_failures_keep_an_only_endpoint_usable() -> None:
    """They may be caused by the requests of one tenant; one that is told to wait is left alone."""
    gate, router = a_gate(ENDPOINTS[:1])
    request = Request("r", Api.CHAT, "cloud", grants=GRANTED.grants)
    for _ in range(4):
        gate.monitor.on_attempt_end(ENDPOINTS[0].url, AttemptStatus.UPSTREAM_5XX)
    assert eligible_for(router.fleet, request, frozenset()).engines
    assert not router.fleet.eligible("cloud").engines
    with pytest.raises(RequestRejected):
        eligible_for(router.fleet, structs.replace(request, grants=frozenset()), frozenset())
    gate.monitor.note_busy(ENDPOINTS[0].url, 100.0)
    for _ in range(4):
        gate.monitor.on_attempt_end(ENDPOINTS[0].url, AttemptStatus.UPSTREAM_5XX)
    with pytest.raises(RequestRejected):
        eligible_for(router.fleet, request, frozenset())
