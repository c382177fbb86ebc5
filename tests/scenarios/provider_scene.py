"""A gateway with one small local model and providers outside the fleet, for the scenarios of providers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from cascade.calibration_json import write_calibration_file
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.gateway.providers_fake import FakeProvider, a_provider
from tests.gateway.running import Running, serving
from tests.scenarios.cascade_pods import calibration_file
from tests.scenarios.place import policy_of

FAST = Profile(step_base_s=0.002)
KEY_VARIABLE = "PROVIDER_KEY_OF_TESTS"

PRICES = {"input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6}

GRANT = {"provider": "acme", "region": "eu", "models": ["cloud"]}
ALLOWED: dict[str, Any] = {"providers": [GRANT], "providers_max_budget": "off"}


@dataclass
class ProviderScene:
    """All that runs."""

    gateway: Running
    local: SimulatedPod
    openai: FakeProvider
    anthropic: FakeProvider
    session: aiohttp.ClientSession
    folder: Path

    async def post(
        self, body: dict[str, Any], tenant: str = "allowed", path: str = "/v1/chat/completions", **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        head = {"authorization": f"Bearer sk-{tenant}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        async with self.session.post(self.gateway.at("traffic", path), json=body, headers=head) as answer:
            return answer.status, await answer.text(), {name.lower(): held for name, held in answer.headers.items()}

    async def receipt(self, receipt_id: str) -> dict[str, Any]:
        async with self.session.get(self.gateway.at("admin", f"/receipts/{receipt_id}")) as answer:
            return dict(await answer.json())

    async def metrics(self) -> dict[str, float]:
        async with self.session.get(self.gateway.at("metrics", "/metrics")) as answer:
            lines = (await answer.text()).splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    async def admin(self, path: str) -> dict[str, Any]:
        async with self.session.post(self.gateway.at("admin", path)) as answer:
            assert answer.status == 200, await answer.text()
            return dict(await answer.json())


def chat_body(text: str = "Hi", model: str = "cloud", **more: Any) -> dict[str, Any]:
    """Return the body of a chat completion request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 24} | more


@asynccontextmanager
async def a_provider_scene(
    folder: Path,
    tenants: dict[str, dict[str, Any]] | None = None,
    *,
    endpoint: dict[str, Any] | None = None,
    threshold: float = 0.0,
    cascade: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
    pod: Options | None = None,
) -> AsyncIterator[ProviderScene]:
    """`endpoint` says more of the OpenAI-compatible one; `cascade` of `auto`, from `small` to `cloud`."""
    (folder / "auto.json").write_bytes(write_calibration_file(calibration_of(threshold)))
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(
            SimulatedPod(pod or Options(models=("small",), profile=FAST, max_answer_tokens=40))
        )
        first = await stack.enter_async_context(a_provider())
        second = await stack.enter_async_context(a_provider(key="sk-ant"))
        (folder / "ant.key").write_text("sk-ant\n")
        settings: dict[str, Any] = {
            "discovery": {"static": {"pods": [local.url]}},
            "model_list": [
                {"model_name": "small", "input_cost_per_token": 1e-7, "output_cost_per_token": 4e-7},
                {"model_name": "cloud", **PRICES},
                {"model_name": "sonnet", **PRICES},
                {
                    "model_name": "auto",
                    "cascade": {
                        "models": ["small", "cloud"],
                        "calibration": str(folder / "auto.json"),
                        "holdback": {"tokens": 8, "max_added_ttft_s": 60},
                        **(cascade or {}),
                    },
                },
                {
                    "model_name": "fallback",
                    "cascade": {
                        "models": ["small", "cloud"],
                        "uncalibrated": "local",
                        "holdback": "off",
                        "check_unary": False,
                    },
                },
            ],
            "providers": {
                "endpoints": [
                    {
                        "name": "acme-eu",
                        "provider": "acme",
                        "region": "eu",
                        "base_url": first.url,
                        "api": "openai",
                        "api_key": f"${{{KEY_VARIABLE}}}",
                        "models": {"cloud": "acme-large"},
                        **(endpoint or {}),
                    },
                    {
                        "name": "claude-us",
                        "provider": "claude",
                        "region": "us",
                        "base_url": f"{second.url}/v1",
                        "api": "anthropic",
                        "api_key_file": str(folder / "ant.key"),
                        "models": {"sonnet": "claude-sonnet"},
                    },
                ]
            },
            **(more or {}),
        }
        for each in settings["providers"]["endpoints"]:
            for name in [name for name, value in each.items() if value is None]:
                del each[name]
        (folder / "policy.yaml").write_text(
            json.dumps(policy_of(**({"allowed": ALLOWED, "denied": {}} if tenants is None else tenants)))
        )
        settings["policy"] = str(folder / "policy.yaml")
        (folder / "hearth.yaml").write_text(json.dumps(settings))
        gateway = await stack.enter_async_context(
            serving("--config", str(folder / "hearth.yaml"), variables={KEY_VARIABLE: "sk-provider"})
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield ProviderScene(gateway, local, first, second, session, folder)


def calibration_of(threshold: float) -> Any:
    """A calibration of the window, for the models of `auto`."""
    return replace(calibration_file(threshold), models=("small", "cloud"))
