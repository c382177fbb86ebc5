"""Each fault is named first, with the right pod, within 60 s of traffic; healthy pods have no finding.

Pods are simulated, and scraped over HTTP by a gateway that is a process of its own. Bundles and exit statuses are those
of the command.
"""

import asyncio
import json
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.doctor import load_bundle
from gateway.diagnosis.view import diagnose_bundle
from simulator.options import Options
from simulator.profile import Profile
from tests.doctor.stand import MODEL, Stand, Traffic, standing
from tests.gateway.kv_index.redis_servers import redis_server
from tests.gateway.running import serving
from tests.sources import ROOT

PLAIN = Options(profile=Profile(), models=(MODEL,))

pytestmark = pytest.mark.timeout(300)


def with_profile(**changes: Any) -> Options:
    return replace(PLAIN, profile=replace(PLAIN.profile, **changes))


async def command(stand: Stand, *words: str) -> tuple[int | None, str]:
    """Run `hearth WORDS` against the gateway of a stand. Returns its exit status and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *words),
        *(() if "--bundle" in words else ("--url", stand.gateway.at("admin"))),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_a_pod_without_its_prefix_cache_is_named(tmp_path: Path) -> None:
    """By the command, by a bundle without the gateway, in the metric, and beside the pod in `/fleet`."""
    async with standing([PLAIN, PLAIN, with_profile(caches_prefixes=False)]) as stand, stand.under(Traffic()):
        found = await stand.until_named("prefix_cache_off")
        assert found["pods"] == [stand.urls[-1]]
        status, text = await command(stand, "doctor")
        assert status == 3
        assert stand.urls[-1] in text
        bundle = tmp_path / "bundle.json.gz"
        assert (await command(stand, "doctor", "--save-bundle", str(bundle)))[0] == 0
        status, text = await command(stand, "doctor", "--bundle", str(bundle))
        assert status == 3
        assert "prefix_cache_off" in text
        diagnosis = diagnose_bundle(load_bundle(bundle))
        assert diagnosis is not None
        assert diagnosis.findings[0].pods == (stand.urls[-1],)
        assert 'hearth_findings{finding="prefix_cache_off"' in await stand.page("metrics", "/metrics")
        fleet = await stand.shown("/fleet")
        assert [pod["findings"] for pod in fleet["pods"]] == [[], [], ["prefix_cache_off"]]
        line = await stand.gateway.until("finding_raised", finding="prefix_cache_off")
        assert line["upstreams"] == [stand.urls[-1]]


async def test_a_small_kv_cache_is_named() -> None:
    """Its requests are preempted."""
    small = with_profile(kv_capacity_tokens=4096, max_num_seqs=32)
    traffic = Traffic(clients=24, groups=24, max_tokens=200, prompt_words=20, pause_s=0.01)
    async with standing([small, small]) as stand, stand.under(traffic):
        assert set((await stand.until_named("kv_pressure"))["pods"]) <= set(stand.urls)


async def test_salts_that_split_prefixes_are_named(tmp_path: Path) -> None:
    """A thousand tenants sent the same prefixes and shared them; then each is isolated."""
    keys = {f"t{number}": f"key of {number}" for number in range(1000)}
    digests = {tenant: [sha256(key.encode()).hexdigest()] for tenant, key in keys.items()}
    policy = tmp_path / "policy.yaml"

    def write(isolation: str) -> None:
        tenants = {tenant: {"models": [MODEL]} for tenant in keys}
        held = {"auth": {"keys": digests}, "defaults": {"cache_isolation": isolation}, "tenants": tenants}
        policy.write_text(json.dumps(held))

    write("shared")
    traffic = Traffic(pause_s=0.3, keys=tuple(keys.values()))
    async with standing([PLAIN, PLAIN], "--policy", str(policy)) as stand, stand.under(traffic):
        await stand.stays_healthy(60.0)
        write("tenant")
        found = await stand.until_named("salts_split_prefixes")
        assert set(found["pods"]) == set(stand.urls)
        assert {each["name"] for each in found["evidence"]} == {"different salts", "hit rate"}


async def test_unlike_block_sizes_are_named() -> None:
    """The pod that differs from the others."""
    async with standing([PLAIN, PLAIN, with_profile(block_size=32)]) as stand, stand.under(Traffic(clients=3)):
        assert (await stand.until_named("unlike_kv_formats"))["pods"] == [stand.urls[-1]]


async def test_a_pod_is_drained_for_a_finding() -> None:
    """In mode `act`, for the finding that the configuration names, announced by log and metric."""
    config = "doctor: {mode: act, drain_findings: [unlike_kv_formats]}\n"
    pods = [PLAIN, PLAIN, PLAIN, with_profile(block_size=32)]
    async with standing(pods, config=config) as stand, stand.under(Traffic(clients=4)):
        line = await stand.gateway.until("finding_pod_drained")
        assert line["upstream"] == stand.urls[-1]
        shown = (await stand.shown("/fleet"))["pods"][-1]
        assert (shown["state"], shown["is_held_for_finding"]) == ("draining", True)
        assert 'hearth_finding_drained_pods{pool="simulated"} 1.0' in await stand.page("metrics", "/metrics")


async def test_two_gateways_drain_one_pod(tmp_path: Path) -> None:
    """On one Redis: the pod that one of them has chosen, of two that differ in a pool of eight."""
    pods = [*[PLAIN] * 6, with_profile(block_size=32), with_profile(block_size=32)]
    async with redis_server(tmp_path) as redis:
        config = f"redis: {redis.url}\ndoctor: {{mode: act, drain_findings: [unlike_kv_formats]}}\n"
        (tmp_path / "hearth.yaml").write_text(config)
        async with standing(pods, config=config) as stand, stand.under(Traffic(clients=4)):
            named = [word for pod in stand.pods for word in ("--pod", pod.url)]
            async with serving(*named, "--config", str(tmp_path / "hearth.yaml")) as other:
                # A gateway decides after a minute of looks, and drains 40 s later.
                await asyncio.gather(*(each.until("finding_raised") for each in (stand.gateway, other)))
                lines = await asyncio.gather(*(each.until("finding_pod_drained") for each in (stand.gateway, other)))
                assert lines[0]["upstream"] == lines[1]["upstream"]
                assert lines[0]["upstream"] in stand.urls[-2:]
                held = [pod["url"] for pod in (await stand.shown("/fleet"))["pods"] if pod["is_held_for_finding"]]
                assert held == [lines[0]["upstream"]]


async def test_healthy_pods_have_no_finding() -> None:
    """None that says that requests are slow."""
    async with standing([PLAIN] * 3) as stand, stand.under(Traffic()):
        await stand.stays_healthy(60.0)
        assert (await command(stand, "doctor"))[0] in (0, 4)
        assert (await command(stand, "baseline", "compare"))[0] in (0, 4)
        assert (await command(stand, "baseline", "save"))[0] == 1
