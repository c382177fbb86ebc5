"""The gateway as a child process in front of real pods, and what it tells of itself on its admin port.

Asks plainly and at once: what is asked is on this machine and answers in a millisecond, so clients that block (half of
the SDKs' users have such) can use it as well as those that do not.
"""

import asyncio
import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.sources import ROOT
from tests.vllm.children import Child, bounds, free_port

T = TypeVar("T")

PATIENCE_S = 250.0


@dataclass(frozen=True, slots=True)
class Receipt:
    """Why a request went where it went, as far as these tests look at it."""

    status: int
    pods: tuple[str, ...]
    """In the order of trying; the last one answered."""
    prompt_bytes: int
    predicted_input_tokens: int
    predicted_cached_input_tokens: int
    actual_cached_input_tokens: int | None
    ends: tuple[str, ...]
    cache_source: str
    """What predicted it at the last attempt: `precise` or `approximate`."""
    candidates: tuple[Any, ...]
    """Of the last try, best first, as the receipt shows them: why it went where it went."""

    @property
    def pod(self) -> str:
        return self.pods[-1]


class Gateway(Child):
    """`hearth serve`, with its admin port beside the traffic port."""

    def __init__(self, pods: Iterable[str], *flags: str, listen: str = "", lifetime_s: int = 3600) -> None:
        listen = listen or f"127.0.0.1:{free_port()}"
        admin = f"127.0.0.1:{free_port()}"
        serve = (str(ROOT / ".venv" / "bin" / "hearth"), "serve", "--listen", listen, "--admin-listen", admin)
        named = (word for pod in pods for word in ("--pod", pod))
        words = (*bounds(lifetime_s), *serve, "--metrics-listen", "off", *named, *flags)
        # What the caller may have set is meant for another gateway.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
        super().__init__(f"gateway-{listen.rpartition(':')[2]}", words, f"http://{listen}", inherited)
        self.admin = f"http://{admin}"

    def receipt(self, receipt_id: str) -> Receipt:
        """A request's receipt. It is written when the request has left, a moment after its last byte."""
        reported = until(lambda: read_json(f"{self.admin}/receipts/{receipt_id}"), f"a receipt {receipt_id}")
        attempts = reported["attempts"]
        return Receipt(
            status=reported["status"],
            pods=tuple(attempt["engine"] for attempt in attempts),
            prompt_bytes=reported["prompt_bytes"],
            predicted_input_tokens=attempts[-1]["predicted_input_tokens"] if attempts else 0,
            predicted_cached_input_tokens=attempts[-1]["predicted_cached_input_tokens"] if attempts else 0,
            actual_cached_input_tokens=attempts[-1]["actual_cached_input_tokens"] if attempts else None,
            ends=tuple(attempt["result"] for attempt in attempts),
            cache_source=attempts[-1]["cache_source"] if attempts else "",
            candidates=tuple(attempts[-1]["candidates"]) if attempts else (),
        )

    def pod(self, url: str) -> Any:
        """Where a pod stands, by the fleet page."""
        (shown,) = [pod for pod in read_json(f"{self.admin}/fleet")["pods"] if pod["url"] == url]
        return shown

    async def finds(self, urls: Iterable[str]) -> None:
        """Wait until it may choose all of these pods: it is ready itself as soon as it may choose one."""
        wanted = set(urls)
        async with asyncio.timeout(PATIENCE_S):
            while wanted := {url for url in wanted if self.pod(url)["state"] != "ready"}:
                if await self.has_ended(within_s=0.1):
                    raise self.failure("it ended while it looked for its pods")

    def charged(self) -> list[Any]:
        """What the ledger holds of each engine that is not idle: empty once everything has been given back."""
        engines = [engine for pod in read_json(f"{self.admin}/fleet")["pods"] for engine in pod["engines"]]
        return [engine["own_load"] for engine in engines if any(engine["own_load"].values())]

    def logged(self) -> list[Any]:
        """Its log so far."""
        complete, _, _ = self.log.read_text().rpartition("\n")
        return [json.loads(line) for line in complete.splitlines() if line.startswith("{")]


@contextlib.asynccontextmanager
async def in_front(
    pods: Iterable[str], *flags: str, listen: str = "", lifetime_s: int = 3600
) -> AsyncIterator[Gateway]:
    """A gateway that is ready and knows all its pods."""
    urls = tuple(pods)
    gateway = Gateway(urls, *flags, listen=listen, lifetime_s=lifetime_s)
    try:
        await gateway.answers("/ready", within_s=PATIENCE_S)
        await gateway.finds(urls)
        yield gateway
    finally:
        await gateway.stop()


def read_json(url: str) -> Any:
    """The answer to a GET, None where there is nothing."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 404:
                raise
        return None


def until(ask: Callable[[], T | None], wanted: str, within_s: float = PATIENCE_S) -> T:
    """Ask again until there is something to be told; each question is a round trip, so this is no busy loop."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if reported := ask():
            return reported
    raise AssertionError(f"{wanted}: not within {within_s:.0f} s")
