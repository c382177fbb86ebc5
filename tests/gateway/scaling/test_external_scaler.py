"""KEDA's four calls, made by a real gRPC client: answers, pushes, errors that make KEDA keep the count, and TLS."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest

from gateway.config.supply import SupplyConfig
from gateway.runtime.addresses import Address, MutualTlsFiles, TlsFiles
from gateway.scaling.external_scaler import ScalerAnswer
from gateway.scaling.scaler_target import UNAVAILABLE, ScalerFault, ScalerTarget
from gateway.scaling.service import ExternalScalerPort
from routing.facts import Role
from tests.gateway.runtime.test_tls import make_certificate
from tests.gateway.scaling.keda import keda

QWEN = {"model": "qwen", "scalerAddress": "hearth:9772", "enableTLS": "false"}


@dataclass
class Backend:
    """Answers that a test sets."""

    answers: dict[ScalerTarget, ScalerAnswer | ScalerFault] = field(default_factory=dict)
    watchers: list[Callable[[], None]] = field(default_factory=list)
    is_unwatched: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self, target: ScalerTarget) -> ScalerAnswer:
        found = self.answers[target]
        if isinstance(found, ScalerFault):
            raise found
        return found

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        def end() -> None:
            self.watchers.remove(on_change)
            self.is_unwatched.set()

        self.watchers.append(on_change)
        return end

    def decide(self, target: ScalerTarget, answer: ScalerAnswer | ScalerFault) -> None:
        self.answers[target] = answer
        for each in tuple(self.watchers):
            each()


@asynccontextmanager
async def scaling(backend: Backend, tls: MutualTlsFiles | None = None) -> AsyncIterator[str]:
    """A scaler that listens; its HOST:PORT."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def log_event(_: str, event: str, **fields: object) -> None:
        if event == "external_scaler_listening":
            listening.set_result(str(fields["listen"][0]))  # type: ignore[index]

    config = SupplyConfig(listen=Address("127.0.0.1", 0), tls=tls)
    port = ExternalScalerPort(config, Address("127.0.0.1", 0), backend, log_event)
    running = asyncio.create_task(port.run())
    try:
        yield await listening
        assert not backend.watchers
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


ANY = ScalerTarget("qwen", "qwen")


async def test_the_value_is_the_desired_count_and_the_target_is_one() -> None:
    """So that the HPA's quotient is the count; zero is the integer, since KEDA reads a float of zero as unset."""
    backend = Backend({ANY: ScalerAnswer(7, is_active=True)})
    async with scaling(backend) as where, keda(where) as client:
        assert await client.metric_spec(QWEN) == [("hearth-desired-engines", 1, 1.0)]
        assert await client.metrics(QWEN) == [("hearth-desired-engines", 7, 7.0)]
        assert await client.is_active(QWEN)
        backend.answers[ANY] = ScalerAnswer(0, is_active=False)
        assert await client.desired(QWEN) == 0.0
        assert not await client.is_active(QWEN)


async def test_pool_role_and_tier_of_the_metadata_choose_the_figure() -> None:
    """One trigger per class; KEDA takes the largest."""
    target = ScalerTarget("qwen", "h100", Role.DECODE, "gold")
    backend = Backend({target: ScalerAnswer(3, is_active=True)})
    async with scaling(backend) as where, keda(where) as client:
        metadata = {**QWEN, "pool": "h100", "role": "decode", "tier": "gold"}
        assert await client.desired(metadata) == 3.0


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"modle": "qwen"}, "metadata.modle: unknown key"),
        ({"scalerAddress": "x:1"}, "metadata.model: missing"),
        ({"model": ""}, "metadata.model: must be one line"),
        ({"model": "qwen", "role": "both"}, "metadata.role: `both` is not one of either, prefill, decode"),
        ({"model": "qwen", "tier": "g\nold"}, "metadata.tier: must be one line"),
        ({"a\r\nb\t50 %": "qwen"}, "metadata.a\r\nb\t50 %: unknown key"),
        ({"größe": "qwen"}, "metadata.größe: unknown key"),
    ],
)
async def test_wrong_metadata_is_an_error_that_names_the_key(metadata: Mapping[str, str], words: str) -> None:
    """KEDA shows it in the ScaledObject's conditions."""
    async with scaling(Backend()) as where, keda(where) as client:
        for call in (client.is_active, client.metric_spec, client.metrics):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(metadata)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert str(caught.value.details()).startswith(words)


async def test_an_unknown_metric_is_an_error() -> None:
    """It would be another scaler's."""
    async with scaling(Backend({ANY: ScalerAnswer(1, is_active=True)})) as where, keda(where) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.metrics(QWEN, "queue-length")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_without_all_figures_the_call_fails_as_unavailable() -> None:
    """KEDA then applies the ScaledObject's fallback."""
    backend = Backend({ANY: ScalerFault(UNAVAILABLE, "sees 1 of 2 gateways")})
    async with scaling(backend) as where, keda(where) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.metrics(QWEN)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "sees 1 of 2 gateways"


async def test_a_stream_sends_the_state_and_each_change() -> None:
    """A pool at zero wakes without waiting for a poll; unchanged states are not repeated."""
    backend = Backend({ANY: ScalerAnswer(0, is_active=False)})
    async with scaling(backend) as where, keda(where) as client:
        states = client.activity(QWEN)
        assert await anext(states) is False
        backend.decide(ANY, ScalerAnswer(0, is_active=False))
        backend.decide(ANY, ScalerAnswer(1, is_active=True))
        assert await anext(states) is True
        backend.decide(ANY, ScalerAnswer(4, is_active=True))
        backend.decide(ANY, ScalerFault(UNAVAILABLE, "figures are stale"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(states)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_leaves_its_stream_is_forgotten() -> None:
    """Nothing is kept of it."""
    backend = Backend({ANY: ScalerAnswer(0, is_active=False)})
    async with scaling(backend) as where, keda(where) as client:
        states = client.activity(QWEN)
        assert await anext(states) is False
        assert len(backend.watchers) == 1
        await states.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(backend.is_unwatched.wait(), 10)


async def test_bytes_that_are_no_message_are_an_error() -> None:
    """Of any method."""
    async with scaling(Backend()) as where:
        channel = grpc.aio.insecure_channel(where, options=(("grpc.enable_http_proxy", 0),))
        call = channel.unary_unary("/externalscaler.ExternalScaler/GetMetrics")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff\xff", timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await channel.unary_unary("/externalscaler.ExternalScaler/StreamMetricSpec")(b"", timeout=20)
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await channel.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make certificates")
async def test_with_a_client_ca_only_its_clients_are_served(tmp_path: Path) -> None:
    """`enableTLS` with KEDA's client certificate."""
    server, client, other = (make_certificate(tmp_path / name, "localhost") for name in ("a", "b", "c"))
    backend = Backend({ANY: ScalerAnswer(2, is_active=True)})
    async with scaling(backend, MutualTlsFiles(server.cert, server.key, client.cert)) as where:
        place = where.replace("127.0.0.1", "localhost")

        def shown(files: TlsFiles) -> grpc.ChannelCredentials:
            return grpc.ssl_channel_credentials(
                server.cert.read_bytes(), files.key.read_bytes(), files.cert.read_bytes()
            )

        async with keda(place, shown(client)) as known:
            assert await known.desired(QWEN) == 2.0
        async with keda(place, shown(other)) as unknown:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unknown.desired(QWEN)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_targets_are_values() -> None:
    """A pool defaults to the model, as discovery labels pods without a pool."""
    assert replace(ANY, tier="gold") == ScalerTarget("qwen", "qwen", Role.EITHER, "gold")
