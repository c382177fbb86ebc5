"""Envoy shows the picker a certificate or a token, set up as docs/envoy.md says; other Envoys are not served."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.envoy.envoys import Way, config_of, running
from tests.envoy.scene import Scene, a_scene, asking, until
from tests.gateway.runtime.test_tls import make_certificate
from tests.sources import ROOT

TOKEN = "a-token-of-some-length"
PICKER = "picker.example"

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command to make certificates"
)


def documented(word: str) -> Any:
    """What the example in the docs that begins with this word says."""
    text = (ROOT / "docs" / "envoy.md").read_text(encoding="utf-8")
    (found,) = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if f"\n{word}:" in each]
    return yaml.safe_load(found)[word]


def with_certificate(config: Any, folder: Path) -> None:
    """The picker's cluster as the docs say, with the files in this folder."""
    (cluster,) = [one for one in config["static_resources"]["clusters"] if one["name"] == "picker"]
    reported = yaml.safe_dump(documented("transport_socket"))
    for name in ("envoy.crt", "envoy.key", "picker-ca.crt"):
        assert name in reported
        reported = reported.replace(name, str(folder / name))
    cluster["transport_socket"] = yaml.safe_load(reported)


def with_token(config: Any, token: str) -> None:
    """Every service of the picker with the metadata that the docs say."""
    (reported,) = documented("initial_metadata")
    assert reported["value"] == "Bearer TOKEN"
    reported["value"] = f"Bearer {token}"
    services = []
    waiting = [config]
    while waiting:
        one = waiting.pop()
        waiting.extend(one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
        if isinstance(one, dict) and "envoy_grpc" in one:
            services.append(one)
    assert len(services) == 2
    for service in services:
        service["initial_metadata"] = [reported]


def files_in(folder: Path) -> dict[str, str]:
    """Certificates of a picker and of its Envoy, each signed by itself, and what the picker is told of them."""
    picker = make_certificate(folder / "picker", PICKER)
    shown = make_certificate(folder / "envoy", "envoy.example")
    shutil.copy(shown.cert, folder / "envoy.crt")
    shutil.copy(shown.key, folder / "envoy.key")
    shutil.copy(picker.cert, folder / "picker-ca.crt")
    return {"cert": str(picker.cert), "key": str(picker.key), "client_ca": str(folder / "envoy.crt")}


@asynccontextmanager
async def behind(config: Any, scene: Scene) -> AsyncIterator[Scene]:
    """The scene with an Envoy of this configuration in front."""
    async with running(config) as front:
        scene.envoy = front
        yield scene


async def status(scene: Scene) -> int:
    async with scene.post(asking()) as answer:
        return int(answer.status)


async def rejected(scene: Scene, by: str) -> float:
    return (await scene.metrics())[f'hearth_extproc_unauthenticated_total{{reason="{by}"}}']


async def test_an_envoy_with_the_certificate_is_served_and_no_other(tmp_path: Path) -> None:
    """Requests, health checks and the access log by mTLS; without a certificate, or with another, nothing is."""
    tls = files_in(tmp_path)
    way = Way(checks=True)
    async with a_scene(None, extproc={"tls": tls}) as scene:
        config = config_of(way, [scene.picker])
        with_certificate(config, tmp_path)
        async with behind(config, scene):

            async def is_served() -> bool:
                return await status(scene) == 200

            await until(is_served)

            async def has_log() -> bool:
                return (await scene.metrics())["hearth_extproc_access_log_streams"] == 1

            await until(has_log)
        assert await rejected(scene, "certificate") == 0
        async with behind(config_of(Way(tls=True), [scene.picker]), scene):
            assert await status(scene) >= 500
        other = tmp_path / "other"
        other.mkdir()
        files_in(other)
        shutil.copy(tmp_path / "picker-ca.crt", other / "picker-ca.crt")
        config = config_of(Way(), [scene.picker])
        with_certificate(config, other)
        async with behind(config, scene):
            assert await status(scene) >= 500
        assert await rejected(scene, "certificate") >= 2
        assert scene.gateway.running.returncode is None


async def test_an_envoy_with_the_token_is_served_and_no_other() -> None:
    """Requests and the access log by its metadata; health checks have none and are answered."""
    async with a_scene(None, extproc={"token": TOKEN}) as scene:
        config = config_of(Way(checks=True), [scene.picker])
        with_token(config, TOKEN)
        async with behind(config, scene):

            async def is_served() -> bool:
                return await status(scene) == 200

            await until(is_served)

            async def has_log() -> bool:
                return (await scene.metrics())["hearth_extproc_access_log_streams"] == 1

            await until(has_log)
        assert await rejected(scene, "token") == 0
        config = config_of(Way(), [scene.picker])
        with_token(config, "another-token-of-some-length")
        async with behind(config, scene):
            assert await status(scene) >= 500
        async with behind(config_of(Way(), [scene.picker]), scene):
            assert await status(scene) >= 500
        assert await rejected(scene, "token") >= 2
        scene.gateway.running.terminate()
        await scene.gateway.end()
        reported = str(scene.gateway.lines) + str(scene.gateway.early)
        assert "another-token" not in reported
        assert TOKEN not in reported
        assert "extproc_caller_rejected" in reported
