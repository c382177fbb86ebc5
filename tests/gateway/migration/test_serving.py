"""A gateway starts with each imported example, serves every name that clients used, and keeps keys and limits."""

import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.migration.test_import import EXAMPLES, FILES, KEY, VARIABLES, imported
from tests.gateway.running import Running, serving

MASTER = "sk-example-master"

IN_A_CLUSTER = frozenset({"03-pools"})
"""Examples whose pods are found by Kubernetes only."""

STARTED = [path for path in FILES if path.stem not in IN_A_CLUSTER]

SIMULATED = "simulated"


async def ask(gateway: Running, model: str, key: str | None) -> int:
    """The status of one request."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    async with (
        aiohttp.ClientSession() as client,
        client.post(gateway.at("traffic", "/v1/chat/completions"), json=body, headers=headers) as answer,
    ):
        await answer.read()
        return answer.status


def written(folder: Path, name: str) -> Any:
    path = folder / "out" / name
    return yaml.safe_load(path.read_text()) if path.exists() else {}


def prepare(path: Path, folder: Path, pod: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import a copy of an example that names the pod."""
    for name, value in (VARIABLES | {"VLLM_BASE": pod}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tests.gateway.migration.test_import.POD", pod)
    copied = folder / path.parent.name / path.name
    copied.parent.mkdir()
    for beside in path.parent.glob(f"{path.stem}.*"):
        shutil.copy(beside, copied.parent)
    host, port = pod.removeprefix("http://").split(":")
    text = path.read_text()
    for address in ("pod-1.example", "pod-2.example"):
        text = text.replace(f"http://{address}:8000", pod).replace(
            f"hostname: {address}, port: 8000", f"hostname: {host}, port: {port}"
        )
    copied.write_text(text.replace("address: 10.9.8.7, port: 8000", f"address: {host}, port: {port}"))
    assert imported(copied, folder) == 0


@pytest.mark.parametrize("path", STARTED, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_a_gateway_starts_and_serves_every_name(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model names and aliases answer with the key that they needed before, and do not without it."""
    models = (SIMULATED, "qwen3-8b", "qwen3-32b", "llama3-8b")
    async with SimulatedPod(Options(models=models)) as pod:
        prepare(path, tmp_path, pod.url, monkeypatch)
        config, policy = written(tmp_path, "hearth.yaml"), written(tmp_path, "policy.yaml")
        flags = ["--config", str(tmp_path / "out" / "hearth.yaml")]
        if "extproc" in config:
            flags += ["--extproc-listen", "127.0.0.1:0"]
        async with serving(*flags, variables=VARIABLES | {"VLLM_BASE": pod.url}) as gateway:
            names = [entry["model_name"] for entry in config.get("model_list", ())] or [SIMULATED]
            names += policy.get("defaults", {}).get("aliases", {})
            auth = policy.get("auth", {"default_tenant": "any"})
            key = MASTER if "litellm-master" in auth.get("keys", {}) else None
            for name in names:
                assert await ask(gateway, name, None) == (200 if "default_tenant" in auth else 401), name
                assert key is None or await ask(gateway, name, key) == 200, name


async def test_keys_keep_their_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's own key is accepted, and its second request of a minute is not."""
    async with SimulatedPod(Options(models=("qwen3-8b", "qwen3-32b"))) as pod:
        prepare(EXAMPLES / "litellm" / "05-teams.yaml", tmp_path, pod.url, monkeypatch)
        async with serving("--config", str(tmp_path / "out" / "hearth.yaml")) as gateway:
            assert await ask(gateway, "large", KEY) == 200
            assert await ask(gateway, "large", KEY) == 429
