"""A gateway with a cascade of two simulated models, for the scenarios of cascades."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
)
from cascade.calibration_json import write_calibration_file
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.gateway.running import Running, serving

CASCADE = "auto"
KEEPS, ESCALATES = 0.0, 2.0
"""Thresholds of a margin, which lies between 0 and 1: any answer is good enough, none is."""

FAST = Profile(step_base_s=0.002)


def calibration_file(
    threshold: float, *, signal: str = "margin", stage: SignalStage = SignalStage.WINDOW
) -> CalibrationFile:
    return CalibrationFile(
        models=("small", "big"),
        signal=signal,
        stage=stage,
        promise=QualityGuarantee(0.01, 0.95),
        evidence=CalibrationEvidence(1000, "sha256:0", kept=0.6),
        cuts=(AcceptanceThreshold(0, ANY_BUCKET, threshold),),
        is_promised=True,
    )


@dataclass
class CascadePods:
    """The gateway and its pods."""

    gateway: Running
    small: SimulatedPod
    big: SimulatedPod
    twins: list[SimulatedPod]
    """Other pods of the two models, one after the other in the order of the models."""
    folder: Path

    def openai(self, key: str = "any", **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.gateway.at("traffic", "/v1"), api_key=key, **more)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        url = self.gateway.at("traffic", path)
        async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.read(), {name.lower(): held for name, held in answer.headers.items()}

    async def receipt(self, receipt_id: str) -> dict[str, Any]:
        url = self.gateway.at("admin", f"/receipts/{receipt_id}")
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return dict(await answer.json())

    async def metrics(self) -> str:
        async with aiohttp.ClientSession() as session, session.get(self.gateway.at("metrics", "/metrics")) as answer:
            return await answer.text()

    async def charged(self) -> list[Any]:
        """What the ledger still holds."""
        async with aiohttp.ClientSession() as session, session.get(self.gateway.at("admin", "/fleet")) as answer:
            pods = (await answer.json())["pods"]
        return [engine["own_load"] for pod in pods for engine in pod["engines"] if any(engine["own_load"].values())]


@asynccontextmanager
async def some_cascade_pods(
    folder: Path,
    threshold: float = KEEPS,
    *,
    file: CalibrationFile | None = None,
    policy: dict[str, Any] | None = None,
    profile: Profile = FAST,
    models: dict[str, dict[str, Any]] | None = None,
    copies: int = 1,
    more: dict[str, Any] | None = None,
    **cascade: Any,
) -> AsyncIterator[CascadePods]:
    """`models` says more of each, of which there are `copies` pods; `cascade` says more of the cascade, `more` of the
    whole configuration.
    """

    def stated(model: str) -> dict[str, Any]:
        return (models or {}).get(model, {})

    (folder / "auto.json").write_bytes(write_calibration_file(file or calibration_file(threshold)))
    async with AsyncExitStack() as stack:
        options = [Options(models=(name,), profile=profile, max_answer_tokens=60) for name in ("small", "big") * copies]
        pods = [await stack.enter_async_context(SimulatedPod(each)) for each in options]
        settings: dict[str, Any] = {
            "discovery": {"static": {"pods": [pod.url for pod in pods]}},
            "model_list": [
                {"model_name": "small", "input_cost_per_token": 1e-7, "output_cost_per_token": 4e-7, **stated("small")},
                {"model_name": "big", "input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6, **stated("big")},
                {
                    "model_name": CASCADE,
                    "cascade": {
                        "models": ["small", "big"],
                        "calibration": str(folder / "auto.json"),
                        # A busy machine stalls streams: what is tested here must not hang on a window's time.
                        "holdback": {"tokens": 8, "max_added_ttft_s": 60},
                        **cascade,
                    },
                },
            ],
        }
        settings |= more or {}
        if policy is not None:
            (folder / "policy.yaml").write_text(json.dumps(policy))
            settings["policy"] = str(folder / "policy.yaml")
        (folder / "hearth.yaml").write_text(json.dumps(settings))
        gateway = await stack.enter_async_context(serving("--config", str(folder / "hearth.yaml")))
        for _ in options:
            await gateway.until("pod_state_changed", state="ready")
        yield CascadePods(gateway, pods[0], pods[1], pods[2:], folder)


def asking(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": CASCADE, "messages": [{"role": "user", "content": text}], "max_tokens": 24} | more


async def settled(rungs: CascadePods, receipt_id: str) -> dict[str, Any]:
    """The receipt, once the request has left."""
    async with asyncio.timeout(120):
        while "cascade" not in (receipt := await rungs.receipt(receipt_id)):
            pass
    return receipt


async def empty(rungs: CascadePods) -> None:
    """Wait until the ledger holds nothing."""
    async with asyncio.timeout(120):
        while await rungs.charged():
            pass
