"""What is kept of clients' prompts: the shared part, of tenants that allow it, bounded in bytes and age."""

from __future__ import annotations

import json

import pytest

from gateway.warmup.prompt_store import RETRY_S, PromptStore
from routing.reading import read_request
from routing.request import Api
from tenancy.tenants import Caller, Tenant

RULES = "You are a careful assistant of the bank. " * 60


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def serve(store: PromptStore, tenant: Tenant, number: int, rules: str = RULES) -> None:
    """One request that shares its system prompt with others."""
    messages = [{"role": "system", "content": rules}, {"role": "user", "content": f"My secret {number}. " * 30}]
    fields = {"stream": True, "max_tokens": 500, "user": f"secret {number}", "metadata": {"case": f"secret {number}"}}
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    read = read_request(Api.CHAT, body, request_id="r", terms=tenant)
    store.observe(read.request, read.body, "/v1/chat/completions", Caller(tenant))


def filled(tenant: Tenant, *, keeps_text: bool = True) -> PromptStore:
    store = PromptStore(max_bytes=1 << 20, max_age_s=60.0, keeps_text=keeps_text, clock=Clock())
    for number in range(4):
        serve(store, tenant, number)
    return store


def test_only_what_is_shared_is_kept() -> None:
    """The body is one for a pod: one token, no stream, with the salt of its tenant, without anybody's own text."""
    store = filled(Tenant("bank", trust_domain="tenant:bank", prewarms=True, regions=frozenset({"eu"})))
    (kept,) = store.kept()
    body = json.loads(kept.body)
    assert RULES.startswith(body["messages"][0]["content"])
    assert len(body["messages"][0]["content"]) > 0.9 * len(RULES)
    assert body["cache_salt"].startswith("hearth-")
    assert (body["max_tokens"], body["stream"]) == (1, False)
    assert b"secret" not in kept.body
    assert kept.terms.regions == frozenset({"eu"})
    assert store.bytes == len(kept.body)


@pytest.mark.parametrize(
    ("tenant", "is_kept"),
    [
        (Tenant("a"), True),
        (Tenant("a", prewarms=False), False),
        (Tenant("a", trust_domain="tenant:a"), False),
        (Tenant("a", trust_domain="tenant:a", prewarms=True), True),
    ],
)
def test_tenants_that_share_no_cache_have_to_agree(tenant: Tenant, is_kept: bool) -> None:
    """And any tenant may forbid it; copies in pools of higher rank need its consent too."""
    kept = filled(tenant).kept()
    assert bool(kept) is is_kept
    assert all(each.terms.may_leave is bool(tenant.prewarms) for each in kept)


def test_without_text_only_hashes_are_kept() -> None:
    """As `prewarm: advise` wants it."""
    store = filled(Tenant("a"), keeps_text=False)
    (kept,) = store.kept()
    assert (kept.body, store.bytes) == (b"", 0)
    assert kept.prompt.covered > 0.9 * len(RULES)


def test_old_prompts_are_forgotten() -> None:
    """After their time, whether or not they are used."""
    clock = Clock()
    store = PromptStore(max_bytes=1 << 20, max_age_s=60.0, keeps_text=True, clock=clock)
    for number in range(4):
        serve(store, Tenant("a"), number)
    clock.now_s = 59.0
    assert store.kept()
    clock.now_s = 60.0
    assert store.kept() == []
    assert store.bytes == 0


def test_memory_is_bounded_and_one_tenant_takes_only_its_own() -> None:
    """What does not fit goes from the tenant that holds most, its coldest first."""
    store = PromptStore(max_bytes=20_000, max_age_s=60.0, keeps_text=True, clock=Clock())
    for number in range(4):
        serve(store, Tenant("small"), number)
    for flood in range(30):
        for number in range(3):
            serve(store, Tenant("loud"), number, f"{flood} {RULES}")
    assert store.bytes <= 20_000
    tenants = [each.tenant for each in store.kept()]
    assert tenants.count("small") == 1
    assert tenants.count("loud") > 1


def test_a_tenant_of_more_regions_takes_the_place_of_one_of_fewer() -> None:
    """The text is the same, and may then go to more pods."""
    store = filled(Tenant("bank", regions=frozenset({"eu"})))
    serve(store, Tenant("shop"), 9)
    (kept,) = store.kept()
    assert (kept.tenant, kept.terms.regions) == ("shop", None)
    store.clear()
    assert (store.kept(), store.bytes) == ([], 0)


def test_what_cannot_be_cut_is_not_kept_and_raises_nothing() -> None:
    """A bug of ours must not end a client's request."""

    def broken(_api: Api, _body: bytes, _size: int) -> tuple[bytes, int] | None:
        raise RuntimeError

    for shorten in (broken, lambda _api, _body, _size: None):
        store = PromptStore(max_bytes=1e6, max_age_s=60.0, keeps_text=True, clock=Clock(), shorten=shorten)
        for number in range(4):
            serve(store, Tenant("a"), number)
        assert store.kept() == []


def test_a_prefix_that_is_not_kept_is_cut_again_after_a_while_only() -> None:
    """Whether it cannot be cut, or finds no room: each request would be read and written again otherwise."""
    clock, cuts = Clock(), list[int]()

    def shorten(_api: Api, body: bytes, size: int) -> tuple[bytes, int] | None:
        cuts.append(size)
        return None if len(cuts) < 2 else (body, size)

    store = PromptStore(max_bytes=1e6, max_age_s=60.0, keeps_text=True, clock=clock, shorten=shorten)
    for number in range(50):
        serve(store, Tenant("a"), number)
    assert (len(cuts), len(store)) == (1, 0)
    clock.now_s = RETRY_S
    serve(store, Tenant("a"), 50)
    assert (len(cuts), len(store)) == (2, 1)
