"""The attacks, each with what it may take of a gateway's memory. Counts are of connections, or of requests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.attacks.crowd import Attacker, crowd, trickle
from tests.attacks.silent_pod import MODEL

KB, MB = 1 << 10, 1 << 20
PATH = "/v1/chat/completions"
PER_CONNECTION = 50
"""Requests that a connection of a flood asks."""

Look = Callable[[], Awaitable[object]]
"""Measure now: it is at its worst."""


@dataclass(frozen=True, slots=True)
class Attack:
    """`may_take`: bytes of resident memory that so many may cost at most."""

    name: str
    play: Callable[[int, int, Look], Awaitable[None]]
    share: float
    """Of the whole count."""
    may_take: Callable[[int], int]


def head(method: str, path: str, *fields: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: hearth", *fields, "", "")).encode()


def asking(prompt: str, *fields: str, path: str = PATH, stream: bool = False, model: str = MODEL, **more: str) -> bytes:
    """One request."""
    stated = {"model": model, "stream": stream, "messages": [{"role": "user", "content": prompt}], **more}
    body = json.dumps(stated).encode()
    return head("POST", path, "content-type: application/json", f"content-length: {len(body)}", *fields) + body


async def slow_heads(port: int, count: int, look: Look) -> None:
    begun = b"POST /v1/chat/completions HTTP/1.1\r\nhost: hearth\r\nx-slow: "
    async with crowd(port, count, lambda _: begun) as attackers:
        for _ in range(5):
            await trickle(attackers, b"x")
        await look()


async def slow_bodies(port: int, count: int, look: Look) -> None:
    begun = head("POST", PATH, "content-type: application/json", "content-length: 1000") + b'{"model": "'
    async with crowd(port, count, lambda _: begun) as attackers:
        for _ in range(5):
            await trickle(attackers, b"x")
        await look()


async def idle_streams(port: int, count: int, look: Look) -> None:
    async with crowd(port, count, lambda number: asking(f"{number} idle", stream=True)) as attackers:
        for attacker in attackers:
            await attacker.until(lambda one: b"data: " in one.reported)
        await look()


async def slow_readers(port: int, count: int, look: Look) -> None:
    """A megabyte for each, of which nobody reads more than the head."""
    async with crowd(port, count, lambda number: asking(f"{number} flood", stream=True)) as attackers:
        for attacker in attackers:
            await attacker.until(_has_started)
        await look()


def _has_started(attacker: Attacker) -> bool:
    if not attacker.reported:
        return False
    attacker.transport.pause_reading()
    return True


async def huge_bodies(port: int, count: int, look: Look) -> None:
    """Thirty megabytes each, all but the last byte: held until refused, never more than all bodies may take."""
    size = 30 * MB
    begun = head("POST", PATH, "content-type: application/json", f"content-length: {size}")
    async with crowd(port, count, lambda _: begun) as attackers:
        for _ in range(29):
            await trickle(attackers, bytes(MB))
            for attacker in attackers:
                await attacker.until(_has_sent)
            await look()


def _has_sent(attacker: Attacker) -> bool:
    return bool(attacker.reported) or attacker.transport.get_write_buffer_size() < MB


def flood(ask: Callable[[int], bytes]) -> Callable[[int, int, Look], Awaitable[None]]:
    """Requests one after the other on few connections, each of its own kind."""

    async def play(port: int, count: int, look: Look) -> None:
        connections = max(1, count // PER_CONNECTION)
        for begin in range(0, connections, 100):
            wave = min(100, connections - begin)
            async with crowd(port, wave, lambda _: b"") as attackers:
                for turn in range(PER_CONNECTION):
                    for number, attacker in enumerate(attackers):
                        attacker.reported.clear()
                        attacker.transport.write(ask((begin + number) * PER_CONNECTION + turn))
                    for attacker in attackers:
                        await attacker.until(lambda one: b"\r\n\r\n" in one.reported)
        await look()

    return play


def _strange(number: int) -> bytes:
    """Its own model, path, header, session and user."""
    fields = (f"x-name-{number}: {number}", f"x-session-id: session-{number}", f"x-request-id: request-{number}")
    if number % 3:
        return asking("Hi", *fields, model=f"model-{number}" if number % 3 == 1 else MODEL, user=f"user-{number}")
    return head("GET", f"/v1/path-{number}?n={number}", *fields)


ATTACKS = (
    Attack("slow heads", slow_heads, 1.0, lambda count: 8 * KB * count),
    Attack("slow bodies", slow_bodies, 1.0, lambda count: 8 * KB * count),
    Attack("idle streams", idle_streams, 1.0, lambda count: 32 * KB * count),
    Attack("streams that are not read", slow_readers, 0.1, lambda count: 128 * KB * count),
    Attack("huge bodies", huge_bodies, 0.005, lambda count: min(30 * MB * count, 1024 * MB) * 5 // 4),
    Attack("distinct prefixes", flood(lambda number: asking(f"{number} " * 1000)), 2.0, lambda count: 4 * KB * count),
    Attack("distinct users, sessions, models, paths, headers", flood(_strange), 5.0, lambda count: 4 * KB * count),
)
