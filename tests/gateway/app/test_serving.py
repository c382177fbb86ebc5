"""A gateway's life as its users see it: it listens, serves, reloads, drains and ends."""

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest

from simulator.faults import NO_FAULT, Fault, FaultKind
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.gateway.fake_pod import FakePod, fake_pods
from tests.gateway.running import ANYWHERE, Running, serving, serving_to
from tests.gateway.runtime.test_tls import make_certificate

SLOW = Profile(step_base_s=0.02)
"""An answer of a hundred tokens takes two seconds."""

SLUGGISH = Fault(FaultKind.SLOW, factor=10)
"""It takes twenty, until the pod is told otherwise: whoever sends signals meanwhile need not hurry."""


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def pod() -> AsyncIterator[SimulatedPod]:
    async with SimulatedPod(
        Options(models=("tiny",), min_answer_tokens=100, max_answer_tokens=100, profile=SLOW)
    ) as pod:
        yield pod


def requested(max_tokens: int = 3, *, stream: bool = True) -> dict[str, object]:
    return {
        "model": "tiny",
        "max_tokens": max_tokens,
        "stream": stream,
        "messages": [{"role": "user", "content": "tell me"}],
    }


CHAT = "/v1/chat/completions"


async def test_a_request_leaves_a_line_a_receipt_a_record_and_a_count(
    client: aiohttp.ClientSession, pod: SimulatedPod, tmp_path: Path
) -> None:
    """One outcome, seen in four places under one id."""
    usage = tmp_path / "usage.jsonl"
    async with serving("--pod", pod.url, "--usage-log", str(usage)) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        async with client.post(gateway.at("traffic", CHAT), json=requested(), headers=headers) as answer:
            assert answer.status == 200
            receipt_id = answer.headers["x-hearth-request-id"]
            assert (await answer.text()).rstrip().endswith("data: [DONE]")
        line = await gateway.until("request_completed", request_id=receipt_id)
        assert (line["status"], line["output_tokens"], line["model"]) == (200, 3, "tiny")
        assert line["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
        async with client.get(gateway.at("admin", f"/receipts/{receipt_id}")) as shown:
            receipt = await shown.json()
        assert receipt["attempts"][0]["engine"] == pod.url
        assert receipt["attempts"][0]["actual_ttft_s"] > 0
        async with client.get(gateway.at("metrics", "/metrics")) as scraped:
            text = await scraped.text()
        assert 'hearth_requests_total{model_name="tiny",reason="",status="200"} 1.0' in text
        gateway.running.send_signal(signal.SIGTERM)
        assert await gateway.end() == 0
    record = json.loads(usage.read_text())
    assert (record["request_id"], record["output_tokens"], record["tenant"]) == (receipt_id, 3, None)


async def test_refusals_at_the_door_are_counted(client: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    """Though they never became a request."""
    async with serving("--pod", pod.url) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        headers = {"content-type": "application/json"}
        async with client.post(gateway.at("traffic", CHAT), data=b"{", headers=headers) as answer:
            assert answer.status == 400
        async with client.get(gateway.at("metrics", "/metrics")) as scraped:
            assert 'hearth_rejections_total{reason="bad_json"} 1.0' in await scraped.text()


async def test_readiness_follows_the_pods(client: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    """On both ports; a drained fleet is not ready."""
    async with serving("--pod", pod.url) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        for port in ("traffic", "metrics"):
            async with client.get(gateway.at(port, "/ready")) as answer:
                assert answer.status == 200
        async with client.post(gateway.at("admin", "/pods/drain"), json={"pod": pod.url}) as answer:
            assert answer.status == 200
        for port in ("traffic", "metrics"):
            async with client.get(gateway.at(port, "/ready")) as answer:
                assert answer.status == 503
            async with client.get(gateway.at(port, "/health")) as answer:
                assert answer.status == 200


async def first_byte(answer: aiohttp.ClientResponse) -> None:
    assert await answer.content.readany()


async def test_who_comes_before_any_pod_has_reported_waits_for_it(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """As where a machine is too busy for the first look: nobody is told that there is no such model, or no pod."""
    config = tmp_path / "hearth.yaml"
    config.write_text("timeouts: {startup_discovery_s: 100}", encoding="utf-8")
    pod = FakePod(hangs=True)
    async with fake_pods(pod), serving("--pod", pod.url, "--config", str(config)) as gateway:
        body = {"model": "tiny", "prompt": "tell me"}
        asking = asyncio.create_task(client.post(gateway.at("traffic", "/v1/completions"), json=body))
        looks = pod.requested["health"]
        await pod.pulse.until(lambda: pod.requested["health"] > looks + 1)
        pod.hangs = False
        async with await asking as answer:
            assert answer.status == 200, await answer.text()


async def test_sigterm_lets_what_runs_finish(client: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    """The stream ends whole, new connections are refused, and the status is 0."""
    async with serving("--pod", pod.url) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        async with client.post(gateway.at("traffic", CHAT), json=requested(100)) as answer:
            await first_byte(answer)
            pod.set_fault(SLUGGISH)
            gateway.running.send_signal(signal.SIGTERM)
            await gateway.until("drain_started", requests_in_flight=1)
            with pytest.raises(aiohttp.ClientConnectorError):
                await client.get(gateway.at("traffic", "/health"))
            async with client.get(gateway.at("metrics", "/ready")) as ready:
                assert ready.status == 503
            pod.set_fault(NO_FAULT)
            assert (await answer.text()).rstrip().endswith("data: [DONE]")
        assert await gateway.end() == 0
    assert gateway.lines[-1]["event"] == "stopped"


async def test_a_lame_duck_serves_on_unready(client: aiohttp.ClientSession, pod: SimulatedPod, tmp_path: Path) -> None:
    """Told to stop it says so first; whoever still comes is served, and told to come elsewhere next time."""
    config = tmp_path / "hearth.yaml"
    config.write_text("timeouts: {lame_duck_s: 3600}\n")
    async with serving("--pod", pod.url, "--config", str(config)) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        gateway.running.send_signal(signal.SIGTERM)
        await gateway.until("lame_duck_started", lame_duck_s=3600)
        for port in ("traffic", "metrics"):
            async with client.get(gateway.at(port, "/ready")) as ready:
                assert ready.status == 503
        async with client.post(gateway.at("traffic", CHAT), json=requested()) as answer:
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert (await answer.text()).rstrip().endswith("data: [DONE]")
        gateway.running.send_signal(signal.SIGTERM)
        assert await gateway.end() == 0
    assert gateway.lines[-1]["event"] == "stopped"


async def test_a_lame_duck_goes_by_itself(client: aiohttp.ClientSession, pod: SimulatedPod, tmp_path: Path) -> None:
    """When its time is over it drains as ever: the stream that runs ends whole."""
    config = tmp_path / "hearth.yaml"
    config.write_text("timeouts: {lame_duck_s: 0.2}\n")
    async with serving("--pod", pod.url, "--config", str(config)) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        async with client.post(gateway.at("traffic", CHAT), json=requested(100)) as answer:
            await first_byte(answer)
            pod.set_fault(SLUGGISH)
            gateway.running.send_signal(signal.SIGTERM)
            await gateway.until("drain_started")
            pod.set_fault(NO_FAULT)
            assert (await answer.text()).rstrip().endswith("data: [DONE]")
        assert await gateway.end() == 0


async def cut_short(answer: aiohttp.ClientResponse) -> bool:
    """Whether the answer ends before its end."""
    try:
        return "[DONE]" not in await answer.text()
    except aiohttp.ClientError:
        return True


async def test_a_second_signal_cuts_at_once(client: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    """Whoever says it twice does not want to wait."""
    async with serving("--pod", pod.url) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        async with client.post(gateway.at("traffic", CHAT), json=requested(100)) as answer:
            await first_byte(answer)
            pod.set_fault(SLUGGISH)
            gateway.running.send_signal(signal.SIGINT)
            await gateway.until("drain_started")
            gateway.running.send_signal(signal.SIGINT)
            assert await cut_short(answer)
        assert await gateway.end() == 0


async def test_the_grace_has_an_end(client: aiohttp.ClientSession, pod: SimulatedPod, tmp_path: Path) -> None:
    """What does not finish in time is cut, as a connection is lost: clients come again elsewhere."""
    config = tmp_path / "hearth.yaml"
    config.write_text("timeouts: {drain_s: 0.1}\n")
    async with serving("--pod", pod.url, "--config", str(config)) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        async with client.post(gateway.at("traffic", CHAT), json=requested(100)) as answer:
            await first_byte(answer)
            pod.set_fault(SLUGGISH)
            gateway.running.send_signal(signal.SIGTERM)
            assert await cut_short(answer)
        assert await gateway.end() == 0


def write_policy(path: Path, **keys: str) -> None:
    digests = {tenant: [sha256(key.encode()).hexdigest()] for tenant, key in keys.items()}
    path.write_text(json.dumps({"auth": {"keys": digests}}))


async def status_with(client: aiohttp.ClientSession, gateway: Running, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    async with client.post(gateway.at("traffic", CHAT), json=requested(stream=False), headers=headers) as answer:
        await answer.read()
        return answer.status


async def test_sighup_reloads_keys_and_pods(client: aiohttp.ClientSession, pod: SimulatedPod, tmp_path: Path) -> None:
    """A new key works, an old one no longer does, a new pod is found; a bad policy leaves all as it was."""
    policy, config = tmp_path / "policy.yaml", tmp_path / "hearth.yaml"
    write_policy(policy, legal="sk-1")
    config.write_text(f"policy: {policy}\ndiscovery: {{static: {{pods: ['{pod.url}']}}}}\n")
    async with SimulatedPod(Options(models=("other",))) as other, serving("--config", str(config)) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        assert await status_with(client, gateway, "sk-1") == 200
        assert (await gateway.until("request_completed"))["tenant"] == "legal"
        assert await status_with(client, gateway, "sk-2") == 401
        write_policy(policy, legal="sk-2")
        config.write_text(f"policy: {policy}\ndiscovery: {{static: {{pods: ['{pod.url}', '{other.url}']}}}}\n")
        gateway.running.send_signal(signal.SIGHUP)
        assert (await gateway.until("reload_succeeded"))["needs_restart"] == []
        await gateway.until("pod_state_changed", state="ready", upstream=other.url)
        assert [await status_with(client, gateway, key) for key in ("sk-1", "sk-2")] == [401, 200]
        policy.write_text("tires: {}\n")
        gateway.running.send_signal(signal.SIGHUP)
        rejected = await gateway.until("reload_failed")
        assert any("tires: unknown key" in fault for fault in rejected["errors"])
        assert await status_with(client, gateway, "sk-2") == 200


async def test_a_policy_is_taken_up_by_itself(client: aiohttp.ClientSession, pod: SimulatedPod, tmp_path: Path) -> None:
    """Without a signal; who is being served under the old one is served to the end."""
    policy = tmp_path / "policy.yaml"
    write_policy(policy, legal="sk-1")
    async with serving("--pod", pod.url, "--policy", str(policy)) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        headers = {"authorization": "Bearer sk-1"}
        async with client.post(gateway.at("traffic", CHAT), json=requested(2_000), headers=headers) as answer:
            await answer.content.readany()
            write_policy(policy, legal="sk-2")
            await gateway.until("policy_reloaded")
            assert [await status_with(client, gateway, key) for key in ("sk-1", "sk-2")] == [401, 200]
            assert (await answer.text()).rstrip().endswith("data: [DONE]")


async def test_a_reload_by_hand_says_what_wants_a_restart(
    client: aiohttp.ClientSession, pod: SimulatedPod, tmp_path: Path
) -> None:
    """And never takes the policy away: that would let everybody in."""
    policy, config = tmp_path / "policy.yaml", tmp_path / "hearth.yaml"
    write_policy(policy, legal="sk-1")
    config.write_text(f"policy: {policy}\nlog: {{level: info}}\n")
    async with serving("--pod", pod.url, "--config", str(config)) as gateway:
        config.write_text(f"policy: {policy}\nlog: {{level: debug}}\ntimeouts: {{drain_s: 1}}\nrouting: round-robin\n")
        async with client.post(gateway.at("admin", "/reload")) as answer:
            reported = await answer.json()
            assert (answer.status, sorted(reported["needs_restart"])) == (200, ["routing", "timeouts"])
        config.write_text("")
        async with client.post(gateway.at("admin", "/reload")) as answer:
            assert answer.status == 422
        assert await status_with(client, gateway, "sk-wrong") == 401


async def test_tls_is_supported_and_reloaded(pod: SimulatedPod, tmp_path: Path) -> None:
    """A client that trusts the new certificate only gets in after the reload."""
    files = make_certificate(tmp_path / "old", "localhost")
    async with serving("--pod", pod.url, "--tls-cert", str(files.cert), "--tls-key", str(files.key)) as gateway:
        await gateway.until("pod_state_changed", state="ready")
        url = gateway.at("traffic", "/ready").replace("http://127.0.0.1", "https://localhost")
        assert await is_trusted(url, files.cert)
        fresh = make_certificate(tmp_path / "new", "localhost")
        assert not await is_trusted(url, fresh.cert)
        files.cert.write_bytes(fresh.cert.read_bytes())
        files.key.write_bytes(fresh.key.read_bytes())
        gateway.running.send_signal(signal.SIGHUP)
        await gateway.until("reload_succeeded")
        assert await is_trusted(url, fresh.cert)


async def is_trusted(url: str, certificate: Path) -> bool:
    import ssl  # noqa: PLC0415 - the one test that needs it

    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(url, ssl=ssl.create_default_context(cafile=str(certificate))) as answer:
                return answer.status == 200
        except aiohttp.ClientConnectorCertificateError:
            return False


async def test_everything_can_come_from_the_environment(client: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    """No flag at all; a Redis that is away stops nothing, and its password stands in no line."""
    variables = {
        "HEARTH_POD": pod.url,
        "HEARTH_LISTEN": "127.0.0.1:0",
        "HEARTH_METRICS_LISTEN": "off",
        "HEARTH_ADMIN_LISTEN": "127.0.0.1:0",
        "HEARTH_ROUTING": "least-loaded",
        "HEARTH_REDIS": "redis://:hunter2@127.0.0.1:1",
    }
    async with serving(variables=variables, where=()) as gateway:
        listening, away = gateway.lines[-1], "replica_sync_unavailable"
        if not any(line["event"] == away for line in gateway.lines):
            await gateway.until(away)
        assert "hunter2" not in json.dumps(gateway.lines)
        assert set(listening) >= {"traffic", "admin"}
        assert "metrics" not in listening
        async with client.get(gateway.at("admin", "/config")) as answer:
            shown = await answer.json()
        assert (shown["routing"]["name"], shown["redis"]) == ("least-loaded", "***")


async def test_a_log_that_is_not_read_stops_nothing(client: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    """Standard output blocked for good: requests go on, and so does the end."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    try:
        async with serving_to(write, *ANYWHERE, "--pod", pod.url) as running:
            lines = b""
            while b'"event":"listening"' not in lines or not lines.endswith(b"\n"):
                lines += await asyncio.to_thread(os.read, read, 1)
            gateway = Running(running, [json.loads(line) for line in lines.splitlines()])
            for _ in range(40):
                async with client.post(gateway.at("traffic", CHAT), json={"model": "no", "messages": []}) as answer:
                    assert answer.status in (404, 400)
            assert await status_with(client, gateway, "any") == 200
            running.send_signal(signal.SIGTERM)
            async with asyncio.timeout(120):
                assert await running.wait() == 0
    finally:
        os.close(write)
        os.close(read)
