"""Real vLLM pods on the CPU for `--real`, where it names folders below `.venv-vllm/models` instead of URLs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.vllm.pods import FINE, Pod, PodPlan, start

LIFETIME_S = 3 * 3600


@contextmanager
def served_at(given: Sequence[str]) -> Iterator[list[str]]:
    """Start a pod for each that is no URL. Yields all URLs, in the same order; the pods end with the block.

    Raises `ChildFailedError` where one does not come to answer.
    """
    names = [each for each in given if "://" not in each]
    pods = start(PodPlan(name, flags=FINE, lifetime_s=LIFETIME_S) for name in names)
    try:
        asyncio.run(_ready(pods))
        urls = dict(zip(names, (pod.url for pod in pods), strict=True))
        yield [urls.get(each, each) for each in given]
    finally:
        asyncio.run(_stop(pods))


async def _ready(pods: Sequence[Pod]) -> None:
    for pod in pods:
        await pod.ready()


async def _stop(pods: Sequence[Pod]) -> None:
    await asyncio.gather(*(pod.stop() for pod in pods))
