"""Where engines publish their KV events: as the configuration says, or as each pod tells at `/kv_event_sources`.

vLLM's rule: a publisher whose address has a wildcard, or is `ipc://`, waits there for who connects; else it connects to
that address itself, and waits are ours. A data-parallel rank adds itself to the port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import aiohttp
import msgspec

from gateway.cluster.ipc_messages import PodTold
from gateway.config.kv_events import EventSource
from gateway.kv_index.subscriber import Source

LARGEST_ANSWER = 1 << 20


class _Told(msgspec.Struct):
    """One rank's publisher, as its pod tells it: with the port it really has."""

    enable_kv_cache_events: bool = False
    publisher: str = ""
    endpoint: str = ""
    replay_endpoint: str | None = None
    topic: str = ""


def configured_sources(pod: PodTold, entry: EventSource) -> dict[str, Source]:
    """Engine to source, for a pod that the configuration speaks of."""
    host = _host_of(pod.url)
    found = {}
    for engine in pod.engines:
        endpoint = _at_rank(entry.endpoint, engine.rank)
        replay = _at_rank(entry.replay_endpoint, engine.rank) if entry.replay_endpoint else None
        binds = not _publisher_binds(entry.endpoint) and _host_of(entry.endpoint) != host
        found[engine.name] = Source(
            endpoint if binds else _reachable(endpoint, host),
            _reachable(replay, host) if replay else None,
            entry.topic,
            bind=binds,
        )
    return found


async def told_sources(pod: PodTold, session: aiohttp.ClientSession) -> dict[str, Source] | None:
    """The same as the pod tells it: empty where it publishes nothing, None where it does not answer."""
    try:
        async with session.get(f"{pod.url}/kv_event_sources", allow_redirects=False) as answer:
            if answer.status != 200:
                return {} if answer.status in (404, 405) else None
            told = msgspec.json.decode(await answer.content.read(LARGEST_ANSWER), type=dict[str, _Told])
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
        return None
    return read_told(pod, told)


def read_told(pod: PodTold, told: Mapping[str, _Told]) -> dict[str, Source]:
    """Engine to source, of what a pod has told by rank."""
    host = _host_of(pod.url)
    found = {}
    for engine in pod.engines:
        one = told.get(str(engine.rank or 0))
        if one is not None and one.enable_kv_cache_events and one.publisher == "zmq":
            replay = _reachable(one.replay_endpoint, host) if one.replay_endpoint else None
            found[engine.name] = Source(_reachable(one.endpoint, host), replay, one.topic)
    return found


def entries_by_pod(entries: Sequence[EventSource]) -> dict[str, EventSource]:
    """The configuration's words, by pod."""
    return {entry.pod: entry for entry in entries}


def _publisher_binds(endpoint: str) -> bool:
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def _reachable(endpoint: str, host: str) -> str:
    """A wildcard is where the pod is."""
    for wildcard in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - looked for, not bound
        endpoint = endpoint.replace(f"//{wildcard}:", f"//{host}:")
    return endpoint


def _at_rank(endpoint: str, rank: int | None) -> str:
    if not rank or not endpoint.startswith("tcp://"):
        return endpoint
    start, _, port = endpoint.rpartition(":")
    return f"{start}:{int(port) + rank}"


def _host_of(url: str) -> str:
    host = urlsplit(url.replace("//*:", "//0.0.0.0:")).hostname or ""
    return f"[{host}]" if ":" in host else host
