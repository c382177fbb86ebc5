"""A headless Chromium over plain WebDriver: opens pages, runs scripts in them, and reads the browser's own log.

The browser has a profile folder of its own, which is empty at first, and ends with the block that started it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps"),
    *("--force-device-scale-factor=1", "--hide-scrollbars"),
)

START_S = 60.0

KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "ArrowDown": "\ue015", "ArrowUp": "\ue013", "End": "\ue010"}


class Browser:
    """One tab."""

    def __init__(self, client: aiohttp.ClientSession, session: str) -> None:
        self._client = client
        self._session = session

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        async with self._client.request(method, f"{self._session}{path}", json=body) as answer:
            value = (await answer.json())["value"]
        if answer.status != 200:
            raise AssertionError(f"{method} {path}: {value['error']}: {value['message']}")
        return value

    async def open(self, url: str) -> None:
        await self._ask("POST", "/url", {"url": url})

    async def run(self, script: str, *arguments: object) -> Any:
        """Return what the body of a function returns in the page; a promise is awaited."""
        return await self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    async def until(self, expression: str, *, within_s: float = 25.0) -> Any:
        """Wait until an expression is true in the page, and return its value."""
        script = f"""
            const end = Date.now() + {round(within_s * 1000)};
            return new Promise((resolve) => {{
              const look = () => {{
                let value = null;
                try {{ value = {expression}; }} catch (error) {{ value = null; }}
                if (value || Date.now() > end) resolve(value); else setTimeout(look, 25);
              }};
              look();
            }});"""
        value = await self.run(script)
        assert value, f"{expression} did not become true within {within_s} s: {await self.text()}"
        return value

    async def text(self) -> str:
        return str(await self.run("return document.body.innerText"))

    async def press(self, *keys: str) -> None:
        """Press and release keys, one after the other."""
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        await self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    async def screenshot(self, path: Path) -> None:
        _write(path, b64decode(await self._ask("GET", "/screenshot")))

    async def log(self, kind: str) -> list[dict[str, Any]]:
        """Return and empty a log: `browser` (the console), `performance` (network and page events)."""
        found: list[dict[str, Any]] = await self._ask("POST", "/se/log", {"type": kind})
        return found

    async def requested(self) -> list[str]:
        """Return the URLs that the tab has requested since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in await self.log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    async def command(self, name: str, **parameters: object) -> Any:
        """Send a command of the DevTools protocol."""
        return await self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@asynccontextmanager
async def browsing(folder: Path, *, width: int = 1440, height: int = 900) -> AsyncIterator[Browser]:
    """Start a driver and a browser whose profile is in `folder`. Both end with the block."""
    driver = await asyncio.create_subprocess_exec(
        shutil.which("chromedriver") or "chromedriver",
        "--port=0",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        where = await _address(driver)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as client:
            flags = [*FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}"]
            options = {"args": flags, "binary": shutil.which("chromium")}
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            async with client.post(f"{where}/session", json={"capabilities": {"alwaysMatch": wanted}}) as answer:
                started = (await answer.json())["value"]
            assert "sessionId" in started, started
            session = f"{where}/session/{started['sessionId']}"
            try:
                yield Browser(client, session)
            finally:
                async with client.delete(session) as answer:
                    await answer.read()
    finally:
        if driver.returncode is None:
            driver.terminate()
        await driver.wait()


async def _address(driver: asyncio.subprocess.Process) -> str:
    assert driver.stdout is not None
    async with asyncio.timeout(START_S):
        async for line in driver.stdout:
            words = line.decode()
            if "started successfully on port" in words:
                return f"http://127.0.0.1:{words.rstrip().rstrip('.').rpartition(' ')[2]}"
    raise AssertionError("chromedriver ended before it listened")
