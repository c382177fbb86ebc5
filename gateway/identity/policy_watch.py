"""Takes up a policy and its key files by itself when they change. A bad one is named, and the old one stays.

Configuration and secrets that Kubernetes mounts change without a signal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gateway.config.values import Settings
from gateway.identity.load import load_policy
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import report, restarted
from tenancy.document import Invalid
from tenancy.policy import Policy

POLL_S = 2.0

Stamps = frozenset[tuple[str, int, int, int]]


@restarted("policy watch")
async def watch_policy(
    settings: Callable[[], Settings],
    in_force: Callable[[], Policy | None],
    renew: Callable[[Policy | None], Awaitable[list[str]]],
    variables: Mapping[str, str],
    *,
    say: EventLog,
    poll_s: float = POLL_S,
) -> None:
    """Until it is cancelled. `renew` puts a policy in force and says what was wrong with that."""
    known = seen = await asyncio.to_thread(_stamps, settings(), in_force())
    while True:
        await asyncio.sleep(poll_s)
        before, seen = seen, await asyncio.to_thread(_stamps, settings(), in_force())
        if seen == known or seen != before:
            continue  # nothing new, or somebody is still writing
        before, known = known, seen  # of before it is read: what changes meanwhile is seen next time
        try:
            policy = await asyncio.to_thread(load_policy, settings(), variables)
            if policy == in_force():
                continue
            faults = await renew(policy)
        except Invalid as invalid:
            faults = [str(fault) for fault in invalid.faults]
        except Exception as error:  # noqa: BLE001 - reported; the files are read again at the next look
            report("policy watch", error)
            known = before
            continue
        if faults:
            say("error", "policy refused, the old one stays", faults=faults)
            continue
        say("info", "policy renewed", file=str(settings().policy))


def _stamps(settings: Settings, policy: Policy | None) -> Stamps:
    """Which files there are, and which versions of them."""
    if settings.policy is None:
        return frozenset()
    named = policy.files if policy is not None else ()
    return frozenset(_found([settings.policy, *map(Path, named)]))


def _found(paths: Iterable[Path]) -> Iterator[tuple[str, int, int, int]]:
    for path in paths:
        try:
            yield from _stamped((path, *path.glob("*"), *path.glob("*/*")))
        except OSError:
            continue  # going, as we look: it has changed, and the next look sees how


def _stamped(paths: Iterable[Path]) -> Iterator[tuple[str, int, int, int]]:
    for path in paths:
        with suppress(OSError):
            held = path.stat()
            yield str(path), held.st_ino, held.st_mtime_ns, held.st_size
