"""What headers say: whom a proxy speaks for, believed by its address; how soon an answer is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any

import pytest

from gateway.http.request_headers import TrustedProxies, model_override, requested_slo, retry_count
from routing.rejection import Reason, RequestRejected
from tenancy.objective import Tier
from tenancy.tenants import Caller, Tenant
from tests.gateway.http.rig import CHAT_PATH, a_chat, a_rig
from tests.gateway.http.wire import answer_bytes, chat_answer

GOOD = [answer_bytes(chat_answer())]
GOLD = Tier("gold", ttft_s=1.0, ttft_uncached_factor=2.0, tpot_s=0.05)


def lets(peer: Any, *networks: str) -> bool:
    return TrustedProxies(map(ip_network, networks))(asyncio.Transport({"peername": peer}))


@pytest.mark.parametrize(
    ("peer", "is_trusted"),
    [
        (("10.1.2.3", 5), True),
        (("11.1.2.3", 5), False),
        (("::ffff:10.1.2.3", 5, 0, 0), True),
        (("::ffff:11.1.2.3", 5, 0, 0), False),
        (("fd00::7", 5, 0, 0), True),
        (("fe80::1%eth0", 5, 0, 2), False),
        (("not an address", 5), False),
        ("/run/socket", False),
        ("", False),
        (None, False),
    ],
)
def test_a_proxy_is_known_by_its_address(peer: Any, is_trusted: bool) -> None:
    """Also where IPv4 comes mapped into IPv6; whoever has no address is nobody."""
    assert lets(peer, "10.0.0.0/8", "fd00::/8") is is_trusted
    assert not lets(peer)


def test_deadlines_tighten_and_never_loosen() -> None:
    """A request may want more than its tier promises, not less."""
    tight = requested_slo(GOLD, {b"x-hearth-ttft-ms": b"200", b"x-hearth-tpot-ms": b"12.5"})
    assert tight is not None
    assert (tight.ttft_s, tight.tpot_s) == (0.2, 0.0125)
    loose = requested_slo(GOLD, {b"x-hearth-ttft-ms": b"86400000", b"x-hearth-tpot-ms": b"1000"})
    assert loose is not None
    assert (loose.ttft_s, loose.ttft_uncached_factor, loose.tpot_s) == (1.0, 2.0, 0.05)
    assert requested_slo(GOLD, {b"host": b"h"}) is None


def test_llm_ds_labels_come_first() -> None:
    """Before its old ones, and those before ours."""
    stated = {b"x-llm-d-slo-ttft-ms": b"100", b"x-slo-ttft-ms": b"200", b"x-hearth-ttft-ms": b"300"}
    for expected in (0.1, 0.2, 0.3):
        promise = requested_slo(GOLD, stated)
        assert promise is not None
        assert promise.ttft_s == expected
        del stated[next(iter(stated))]


@pytest.mark.parametrize(
    "value",
    [
        *(b"0", b"-1", b"", b" ", b"1e3", b"0x10", b"+5", b"nan", b"inf", b"1_000", b"86400001", b"9" * 5000),
        *(b"200, 300", b"\xd9\xa5", b"0.0000001", b"5ms"),
    ],
)
@pytest.mark.parametrize("name", [b"x-llm-d-slo-ttft-ms", b"x-slo-tpot-ms", b"x-hearth-tpot-ms"])
def test_a_deadline_that_is_none_is_rejected_by_name(name: bytes, value: bytes) -> None:
    """What is no plain number of milliseconds within a day is never guessed at."""
    with pytest.raises(RequestRejected) as rejected:
        requested_slo(GOLD, {name: value})
    assert (rejected.value.reason, rejected.value.param) == (Reason.BAD_REQUEST, name.decode())


@pytest.mark.parametrize(
    ("stated", "count"),
    [(b"0", 0), (b"2", 2), (b"999", 999), (b"", 0), (b"-1", 0), (b"1000", 0), (b"\xb2", 0), (b"x", 0)],
)
def test_clients_report_how_often_they_have_called(stated: bytes, count: int) -> None:
    """As OpenAI's and Anthropic's libraries count; what is no count is none."""
    assert retry_count({b"x-stainless-retry-count": stated}) == count
    assert retry_count({}) == 0


async def test_a_bad_deadline_is_the_clients_fault_on_the_wire() -> None:
    """400 with the header's name, in either dialect, and no pod is asked."""
    async with a_rig() as rig:
        answer = await rig.ask(CHAT_PATH, a_chat(), x_hearth_ttft_ms="soon")
        assert (answer.status, answer.json()["error"]["param"]) == (400, "x-hearth-ttft-ms")
        answer = await rig.ask("/v1/messages", a_chat(max_tokens=5), x_slo_tpot_ms="-1")
        assert (answer.status, answer.json()["type"]) == (400, "error")
        assert "x-slo-tpot-ms" in answer.json()["error"]["message"]
        assert not rig.pod.questions
    assert [outcome.reason for outcome in rig.outcomes] == [Reason.BAD_REQUEST] * 2


@pytest.mark.parametrize(("networks", "received"), [(("127.0.0.0/8",), True), (("10.0.0.0/8",), False), ((), False)])
async def test_who_speaks_for_others_is_believed_by_address_only(networks: tuple[str, ...], received: bool) -> None:
    """The headers of anybody else are as if they had not been sent."""
    heads: list[Mapping[bytes, bytes] | None] = []

    def identify(key: str | None, spoken: Mapping[bytes, bytes] | None) -> Caller:
        heads.append(spoken)
        return Caller(Tenant(spoken[b"x-hearth-tenant"].decode() if spoken else "key's"))

    async with a_rig(identify=identify, trusted=tuple(map(ip_network, networks))) as rig:
        rig.pod.plays(GOOD)
        assert (await rig.ask(CHAT_PATH, a_chat(), x_hearth_tenant="proxy's")).status == 200
    assert [outcome.tenant for outcome in rig.outcomes] == ["proxy's" if received else "key's"]
    assert (heads[0] is not None) == received


async def test_a_policy_may_give_other_headers_a_meaning() -> None:
    """They are kept from then on, and on connections that are open already."""
    seen: list[bytes | None] = []

    def identify(key: str | None, spoken: Mapping[bytes, bytes] | None) -> Caller:
        seen.append((spoken or {}).get(b"x-team"))
        return Caller()

    async with a_rig(identify=identify, trusted=(ip_network("127.0.0.1"),)) as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        await client.ask(CHAT_PATH, a_chat(), x_team="search")
        rig.front.dispatcher.keep_headers(["X-Team"])
        await client.ask(CHAT_PATH, a_chat(), x_team="search")
    assert seen == [None, b"search"]


def test_the_model_that_was_decided_on_is_read() -> None:
    """llm-d's name before its old one; nothing where nobody says so; no name is the speaker's fault."""
    both = {b"x-gateway-model-name-rewrite": b"old", b"x-llm-d-model-name-rewrite": b"new"}
    assert model_override(both) == "new"
    assert model_override({b"x-gateway-model-name-rewrite": b"old"}) == "old"
    assert model_override({}) is None
    for value in (b"", b"x" * 257, b"\xff"):
        with pytest.raises(RequestRejected) as rejected:
            model_override({b"x-llm-d-model-name-rewrite": value})
        assert rejected.value.param == "x-llm-d-model-name-rewrite"
