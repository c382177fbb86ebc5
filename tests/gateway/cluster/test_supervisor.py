"""Several processes behave as one gateway: they share a port, are counted together, and replaced when they die."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from simulator.faults import NO_FAULT
from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.app.test_serving import CHAT, SLOW, SLUGGISH, cut_short, first_byte, requested, write_policy
from tests.gateway.kv_index.redis_servers import free_port, redis_server
from tests.gateway.running import Running, serving
from tests.gateway.runtime.test_tls import make_certificate
from tests.sources import ROOT

THREE = ("--processes", "3")


def new_connections(key: str = "any") -> aiohttp.ClientSession:
    """A client whose every request comes by a connection of its own: the kernel deals them out."""
    connector = aiohttp.TCPConnector(force_close=True)
    return aiohttp.ClientSession(connector=connector, headers={"authorization": f"Bearer {key}"})


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_connections() as session:
        yield session


@pytest.fixture
async def pod() -> AsyncIterator[SimulatedPod]:
    async with SimulatedPod(
        Options(models=("tiny",), min_answer_tokens=100, max_answer_tokens=100, profile=SLOW)
    ) as pod:
        yield pod


async def shown(client: aiohttp.ClientSession, url: str) -> Any:
    async with client.get(url) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def total(client: aiohttp.ClientSession, gateway: Running) -> int:
    """Requests that all processes together say they have served."""
    async with client.get(gateway.at("metrics", "/metrics")) as answer:
        lines = (await answer.text()).splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("hearth_requests_total{"))


async def served(client: aiohttp.ClientSession, gateway: Running) -> str:
    """Have one request served. Returns its receipt's id."""
    async with client.post(gateway.at("traffic", CHAT), json=requested(1, stream=False)) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers["x-hearth-request-id"]


async def until(is_so: Callable[[], Any]) -> None:
    """Ask again and again; every asking waits for an answer of its own."""
    async with asyncio.timeout(120):
        while not await is_so():
            pass


async def pids(client: aiohttp.ClientSession, gateway: Running) -> dict[str, int]:
    return {child["name"]: child["pid"] for child in (await shown(client, gateway.at("admin", "/fleet")))["processes"]}


async def worker_of(client: aiohttp.ClientSession, gateway: Running, receipt: str) -> str:
    return str((await shown(client, gateway.at("admin", f"/receipts/{receipt}")))["worker"])


async def test_a_worker_that_dies_is_replaced_and_no_other_suffers(
    client: aiohttp.ClientSession, pod: SimulatedPod
) -> None:
    """Connections to the others go on; totals never fall; what comes back serves; every line of the log is whole."""
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(serving("--pod", pod.url, *THREE))
        sessions = []
        for _ in range(12):
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1))
            sessions.append(await stack.enter_async_context(session))
        homes = [await worker_of(client, gateway, await served(session, gateway)) for session in sessions]
        victim = homes[0]
        assert set(homes) > {victim}
        assert await total(client, gateway) == len(sessions)

        is_back, count = asyncio.Event(), len(sessions)

        async def load(session: aiohttp.ClientSession) -> int:
            done = 0
            while not is_back.is_set():
                await served(session, gateway)
                done += 1
            return done

        others = [session for session, home in zip(sessions, homes, strict=True) if home != victim]
        tasks = [asyncio.create_task(load(session)) for session in others]
        before = await total(client, gateway)
        os.kill((await pids(client, gateway))[victim], signal.SIGKILL)
        await gateway.until("process_exited", process=victim, exit_status=-signal.SIGKILL)
        assert await total(client, gateway) >= before
        await gateway.until("process_started", process=victim)
        is_back.set()
        count += sum(await asyncio.gather(*tasks))
        for _ in range(200):
            count += 1
            if await worker_of(client, gateway, await served(client, gateway)) == victim:
                break
        else:
            pytest.fail("the new worker gets no connection")
        await until(lambda: equals(total(client, gateway), count))
        gateway.running.send_signal(signal.SIGTERM)
        assert await gateway.end() == 0


async def equals(value: Any, wanted: int) -> bool:
    return bool(await value == wanted)


async def test_they_are_called_and_answered_as_one(
    client: aiohttp.ClientSession, pod: SimulatedPod, tmp_path: Path
) -> None:
    """Receipts of all, usage of all in one file, a pod drained everywhere also for who comes later, keys renewed."""
    policy, usage = tmp_path / "policy.yaml", tmp_path / "usage.jsonl"
    write_policy(policy, legal="sk-1")
    flags = ("--pod", pod.url, "--policy", str(policy), "--usage-log", str(usage), *THREE)
    async with serving(*flags) as gateway:
        async with new_connections("sk-1") as keyed:
            made = [await served(keyed, gateway) for _ in range(20)]
        listed = (await shown(client, gateway.at("admin", "/receipts?limit=20")))["receipts"]
        assert [receipt["id"] for receipt in listed] == made[::-1]
        assert len({receipt["worker"] for receipt in listed}) > 1
        await until(lambda: has_lines(usage, 20))
        assert sorted(json.loads(line)["request_id"] for line in usage.read_text().splitlines()) == sorted(made)

        write_policy(policy, legal="sk-2")
        async with client.post(gateway.at("admin", "/reload")) as answer:
            reported = await answer.json()
        assert reported["processes"] == ["index", "worker-1", "worker-2", "worker-3"]
        assert await statuses(gateway, "sk-1") == {401}
        policy.write_text("tiers: {}\n")
        gateway.running.send_signal(signal.SIGHUP)
        await gateway.until("reload_failed")
        assert await statuses(gateway, "sk-2") == {200}

        async with client.post(gateway.at("admin", "/pods/drain"), json={"pod": pod.url}) as answer:
            assert (await answer.json())["state"] == "draining"
        gateway.early.clear()
        os.kill((await pids(client, gateway))["worker-1"], signal.SIGTERM)
        await gateway.until("process_started", process="worker-1")
        assert await statuses(gateway, "sk-2") == {503}
        async with client.get(gateway.at("metrics", "/ready")) as answer:
            assert answer.status == 503
        async with client.post(gateway.at("admin", "/pods/undrain"), json={"pod": pod.url}) as answer:
            assert answer.status == 200
        assert await statuses(gateway, "sk-2") == {200}
        write_policy(policy, legal="sk-3")
        await gateway.until("policy_reloaded")
        assert (await statuses(gateway, "sk-2"), await statuses(gateway, "sk-3")) == ({401}, {200})
        assert "states" not in (await shown(client, gateway.at("admin", "/fleet")))["pods"][0]


async def has_lines(path: Path, count: int) -> bool:
    return (await asyncio.to_thread(path.read_bytes)).count(b"\n") == count


async def statuses(gateway: Running, key: str) -> set[int]:
    """What a dozen connections are answered: some to every worker."""
    found = set()
    async with new_connections(key) as session:
        for _ in range(12):
            async with session.post(gateway.at("traffic", CHAT), json=requested(1, stream=False)) as answer:
                found.add(answer.status)
    return found


async def test_all_finish_what_runs(client: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    """Streams on every worker end whole, new connections are refused, and the run folder is gone."""
    async with serving("--pod", pod.url, *THREE) as gateway, AsyncExitStack() as stack:
        folder = await run_folder(gateway)
        pod.set_fault(SLUGGISH)
        answers = [
            await stack.enter_async_context(client.post(gateway.at("traffic", CHAT), json=requested(100)))
            for _ in range(6)
        ]
        for answer in answers:
            await first_byte(answer)
        # Every worker knows of all six by now or soon; together they are six all the same.
        await until(partial(shows_load, client, gateway, {"own_load": 6, "peer_load": 0}))
        gateway.running.send_signal(signal.SIGTERM)
        for _ in range(4):  # the supervisor and its workers
            await gateway.until("drain_started")
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get(gateway.at("traffic", "/health"))
        async with client.get(gateway.at("metrics", "/ready")) as ready:
            assert ready.status == 503
        pod.set_fault(NO_FAULT)
        for answer in answers:
            assert (await answer.text()).rstrip().endswith("data: [DONE]")
        assert await gateway.end() == 0
        assert gateway.lines[-1]["event"] == "stopped"
        assert not folder.exists()


async def shows_load(client: aiohttp.ClientSession, gateway: Running, wanted: dict[str, int]) -> bool:
    """Whether the only engine is shown with so many requests, in the fleet and in the metrics."""
    fleet = await shown(client, gateway.at("admin", "/fleet"))
    (engine,) = fleet["pods"][0]["engines"]
    async with client.get(gateway.at("metrics", "/metrics")) as answer:
        is_counted = (
            f'hearth_engine_running_requests{{dp_rank="0",upstream="{engine["name"]}"}} {wanted["own_load"]}.0'
            in await answer.text()
        )
    return is_counted and {name: engine[name]["running"] for name in wanted} == wanted


async def run_folder(gateway: Running) -> Path:
    message = "index_process_listening"
    line = next((line for line in gateway.lines if line["event"] == message), None) or await gateway.until(message)
    return Path(line["socket"]).parent


async def test_a_second_signal_cuts_all(client: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    """Whoever says it twice does not want to wait."""
    async with serving("--pod", pod.url, "--processes", "2") as gateway:
        async with client.post(gateway.at("traffic", CHAT), json=requested(100)) as answer:
            await first_byte(answer)
            pod.set_fault(SLUGGISH)
            gateway.running.send_signal(signal.SIGINT)
            for _ in range(3):
                await gateway.until("drain_started")
            gateway.running.send_signal(signal.SIGINT)
            assert await cut_short(answer)
        assert await gateway.end() == 0


async def test_without_their_supervisor_workers_end(client: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    """Killed as hard as can be; they finish what runs, and the port and the folder are free."""
    where = f"127.0.0.1:{free_port()}"
    ports = ("--listen", where, "--metrics-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
    async with serving("--pod", pod.url, "--processes", "2", where=ports) as gateway:
        folder, children = await run_folder(gateway), await pids(client, gateway)
        async with client.post(gateway.at("traffic", CHAT), json=requested(20)) as answer:
            await first_byte(answer)
            gateway.running.kill()
            await gateway.end()  # the log ends when its last writer does
            assert (await answer.text()).rstrip().endswith("data: [DONE]")
        for pid in children.values():
            await until(partial(has_ended, pid))
        assert not folder.exists()
        async with serving("--pod", pod.url, where=ports) as again:
            assert again.at("traffic") == gateway.at("traffic")


async def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    await asyncio.sleep(0)
    return False


async def rejected(*flags: str) -> str:
    """What a gateway that cannot start says."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", *flags), stderr=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        async with asyncio.timeout(120):
            _, stated = await started.communicate()
    finally:
        if started.returncode is None:
            started.kill()
    assert started.returncode == 1
    return stated.decode()


async def test_what_cannot_start_says_so_once(pod: SimulatedPod, tmp_path: Path) -> None:
    """A port that is taken, also by a gateway of several processes; files that only a worker opens."""
    async with serving("--pod", pod.url, "--processes", "2") as gateway:
        where = gateway.at("traffic").removeprefix("http://")
        for processes in ("1", "2"):
            flags = ("--pod", pod.url, "--listen", where, "--metrics-listen", "off", "--admin-listen", "off")
            assert f"hearth: listen: cannot listen on {where}: " in await rejected(*flags, "--processes", processes)
    files = make_certificate(tmp_path, "localhost")
    files.key.write_text("no key")
    anywhere = ("--listen", "127.0.0.1:0", "--metrics-listen", "off", "--admin-listen", "off", "--pod", pod.url)
    stated = await rejected(*anywhere, *THREE, "--tls-cert", str(files.cert), "--tls-key", str(files.key))
    assert stated.count("hearth: tls: ") == 1


EMPTY = "source_empty"
AWAY, BACK = "replica_sync_unavailable", "replica_sync_recovered"


async def test_a_healthy_start_and_a_lost_redis_are_quiet(tmp_path: Path, pod: SimulatedPod) -> None:
    """Workers come before the process they connect to: no warning but that no agent is in the registry, once. A Redis
    that all of them lose: one, and one line when it is back.
    """
    (tmp_path / "policy.yaml").write_text("auth: {default_tenant: a}\ntenants: {a: {rpm: 1000}}\n")
    async with redis_server(tmp_path) as redis:
        (tmp_path / "hearth.yaml").write_text(
            f"policy: policy.yaml\nredis: {redis.url}\n"
            f'discovery: {{agent_registry: true, static: {{pods: ["{pod.url}"]}}}}\n'
        )
        async with serving("--config", str(tmp_path / "hearth.yaml"), *THREE) as gateway:
            await gateway.until_each("replica_history_replayed", "worker", 1, 2, 3)
            warnings = [line for line in gateway.lines if line["level"] in ("warning", "error")]
            assert [line["event"] for line in warnings] == [EMPTY]
            for times in (1, 2):
                await redis.kill()
                await gateway.until(AWAY)
                await redis.start()
                await gateway.until(BACK)
                lines = [line for line in gateway.lines if line["level"] == "warning"]
                assert [line["event"] for line in lines] == [EMPTY] + [AWAY] * times
                assert sum("recovered" in line["event"] for line in gateway.lines) == times
