"""A real Prometheus that scrapes one gateway, for questions that are asked in PromQL."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.sources import ROOT

BINARY = ROOT / ".venv-prometheus/usr/bin/prometheus"

START_S = 60.0

Answer = dict[tuple[tuple[str, str], ...], float]
"""Value by labels."""


class Prometheus:
    """Its HTTP API."""

    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self._client = client
        self.url = url

    async def query(self, expression: str) -> Answer:
        """Return the instant vector of an expression."""
        async with self._client.get(f"{self.url}/api/v1/query", params={"query": expression}) as answer:
            found: dict[str, Any] = json.loads(await answer.read())
        assert found["status"] == "success", found
        return {
            tuple(sorted((name, value) for name, value in each["metric"].items() if name != "__name__")): float(
                each["value"][1]
            )
            for each in found["data"]["result"]
        }

    async def until(self, expression: str, *, within_s: float = 60.0) -> Answer:
        """Wait until an expression has a result, and return it."""
        async with asyncio.timeout(within_s):
            while not (found := await self.query(expression)):  # noqa: ASYNC110 - another program makes it happen
                await asyncio.sleep(0.25)
        return found


@asynccontextmanager
async def prometheus(
    folder: Path, targets: Sequence[str], rules: Sequence[Path] = (), *, interval_s: int = 1
) -> AsyncIterator[Prometheus]:
    """Start Prometheus on the loopback address, scraping every `interval_s`. It ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - a folder of a test
    config = {
        "global": {
            "scrape_interval": f"{interval_s}s",
            "scrape_timeout": f"{interval_s}s",
            "evaluation_interval": f"{2 * interval_s}s",
        },
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [{"job_name": "hearth", "static_configs": [{"targets": [*targets]}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{held.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        str(BINARY),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={where}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as client:
            async with asyncio.timeout(START_S):
                while not await _is_ready(client, where):  # noqa: ASYNC110 - another program makes it happen
                    await asyncio.sleep(0.1)
            yield Prometheus(client, f"http://{where}")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_ready(client: aiohttp.ClientSession, where: str) -> bool:
    try:
        async with client.get(f"http://{where}/-/ready") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
