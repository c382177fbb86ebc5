"""A running gateway diagnoses its fleet: findings on the admin port, a bundle, and nothing of it where it is off."""

import json
from pathlib import Path
from typing import Any

import aiohttp

from gateway.diagnosis.view import read_bundle
from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.running import Running, serving


async def page(gateway: Running, port: str, path: str, status: int = 200) -> bytes:
    async with aiohttp.ClientSession() as session, session.get(gateway.at(port, path)) as answer:
        assert answer.status == status
        return await answer.read()


async def looked(gateway: Running) -> dict[str, Any]:
    """Findings after the first look."""
    await gateway.until("diagnosis_started")
    shown: dict[str, Any] = json.loads(await page(gateway, "admin", "/findings"))
    return shown


async def test_findings_are_shown_while_the_gateway_runs(tmp_path: Path) -> None:
    """Too little traffic is an answer; the version of a pod without an agent is read from the pod."""
    config = tmp_path / "hearth.yaml"
    config.write_text(f"doctor: {{baseline: {tmp_path}/baseline.json}}\n")
    async with (
        SimulatedPod(Options(models=("tiny",))) as pod,
        serving("--pod", pod.url, "--config", str(config)) as gateway,
    ):
        shown = await looked(gateway)
        assert shown["mode"] == "advise"
        assert shown["first"]["question"] == "unknown"
        assert shown["findings"] == []
        bundle = read_bundle(await page(gateway, "admin", "/findings/bundle"))
        (observed,) = bundle.looks[-1].facts.pods
        assert observed.address == pod.url
        assert observed.build is not None
        assert observed.build.version
        assert b"hearth_unchecked_findings" in await page(gateway, "metrics", "/metrics")
        overview = json.loads(await page(gateway, "admin", "/overview"))
        assert overview["parts"][0]["findings"] == []
        async with (
            aiohttp.ClientSession() as session,
            session.post(gateway.at("admin", "/baseline/save"), json={"reset": True}) as answer,
        ):
            assert answer.status == 200
        assert (tmp_path / "baseline.json").exists()


async def test_without_diagnosis_there_is_nothing_to_show(tmp_path: Path) -> None:
    """The admin port says why; there is no metric."""
    config = tmp_path / "hearth.yaml"
    config.write_text("doctor: {mode: off}\n")
    async with (
        SimulatedPod(Options(models=("tiny",))) as pod,
        serving("--pod", pod.url, "--config", str(config)) as gateway,
    ):
        assert b"doctor.mode is off" in await page(gateway, "admin", "/findings", 404)
        assert b"hearth_findings" not in await page(gateway, "metrics", "/metrics")


async def test_one_of_several_workers_diagnoses(tmp_path: Path) -> None:
    """The supervisor shows what it found."""
    async with SimulatedPod(Options(models=("tiny",))) as pod, serving("--pod", pod.url, "--processes", "2") as gateway:
        assert (await looked(gateway))["mode"] == "advise"
