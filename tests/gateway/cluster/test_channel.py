"""Whole values go over a channel, and its end is noticed."""

import asyncio
import socket
from ipaddress import ip_network
from pathlib import Path

from gateway.app.reload import LoadedConfig
from gateway.cluster.channel import ApplyConfig, ChildConfig, ConfigApplied, ControlChannel
from gateway.config.fields import Secret
from gateway.config.kv_events import KvEventsConfig, KvEventSource
from gateway.config.models import ModelEntry
from gateway.config.settings import Settings
from gateway.runtime.addresses import Address, TlsFiles
from gateway.runtime.host import HostProcess
from tenancy.policy import InlineFiles
from tenancy.reading.policy import read_policy

POLICY = f"auth: {{keys: {{legal: [{'a' * 64}]}}}}\ntenants: {{legal: {{models: [tiny]}}}}\n"


async def test_orders_arrive_as_they_were_given() -> None:
    """Settings with every kind of value, secrets and scorers included, and the policy."""
    settings = Settings(
        listen=Address("::1", 8000),
        admin_token=Secret("hunter2"),
        trusted_proxies=(ip_network("10.0.0.0/8"),),
        models=(ModelEntry("a", 1e-6),),
        tls=TlsFiles(Path("c"), Path("k")),
        kv_events=KvEventsConfig(sources=(KvEventSource("http://a:1", "tcp://a:5557"),)),
    )
    fresh = LoadedConfig(settings, read_policy(POLICY, {}, InlineFiles()))
    orders = ChildConfig(
        "worker-1", HostProcess(1, 2, Path("run")), fresh, ((2, ("127.0.0.1", 80)),), frozenset(("http://a:1",))
    )
    ours, theirs = [await ControlChannel.over(end) for end in socket.socketpair()]
    ours.send(orders)
    ours.send(ApplyConfig(fresh))
    async with asyncio.timeout(120):
        assert await theirs.receive() == orders
        assert await theirs.receive() == ApplyConfig(fresh)
        theirs.send(ConfigApplied(("no",)))
        assert await ours.receive() == ConfigApplied(("no",))
        await ours.close()
        assert await theirs.receive() is None
    await theirs.close()
