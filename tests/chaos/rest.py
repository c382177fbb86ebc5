"""At rest nothing may be left: no request, connection or charge on gateways, no request in engines, little in Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.chaos.cast import Cast, Gateway
from tests.chaos.programs import Program, pause
from tests.chaos.readings import Reading, read_charged, read_metrics

SETTLED_S = 60.0
"""So long after the last answer nothing may be left anywhere."""

ZERO_AT_REST = ("hearth_requests_in_flight", "hearth_downstream_connections", "hearth_queued_requests")

ENGINE_AT_REST = ("vllm:num_requests_running", "vllm:num_requests_waiting")

MOST_FDS = 112
"""Of a gateway at rest: its three processes have some 75, connections to Redis and a few to each pod included."""

MOST_KEYS = 32
"""In Redis: one stream of news and one hash for each account, of which a run has a handful."""


async def await_rest(cast: Cast) -> list[str]:
    """What is left after everybody was given time, in words."""
    left: list[str] = []
    for _ in range(round(SETTLED_S)):
        left = [words async for words in _left(cast)]
        if not left:
            break
        await pause(1.0)
    return left


async def _left(cast: Cast) -> AsyncIterator[str]:
    for gateway in cast.gateways:
        for words in await _on_gateway(cast, gateway):
            yield f"{gateway.name}: {words}"
    for pod in cast.pods:
        for words in await _in_engine(cast, pod):
            yield f"{pod.name}: {words}"
    keys = int(str(await cast.redis[0].log_event("DBSIZE")))
    if keys > MOST_KEYS:
        yield f"redis: {keys} keys"


async def _on_gateway(cast: Cast, gateway: Gateway) -> list[str]:
    reading = await read_metrics(cast.session, gateway.metrics)
    if reading is None:
        return ["does not answer"]
    fds = reading.sum_of("process_open_fds")
    many = [f"{fds:.0f} file descriptors"] if fds > MOST_FDS else []
    return [*_not_zero(reading, ZERO_AT_REST), *many, *await read_charged(cast.session, gateway)]


async def _in_engine(cast: Cast, pod: Program) -> list[str]:
    reading = await read_metrics(cast.session, f"{pod.url}/metrics")
    return ["does not answer"] if reading is None else _not_zero(reading, ENGINE_AT_REST)


def _not_zero(reading: Reading, names: tuple[str, ...]) -> list[str]:
    return [f"{name} is {reading.sum_of(name):g}" for name in names if reading.sum_of(name)]
