"""The other way to be rid of log-probabilities after the window: the stream is aborted there and restarted without
them, on the same engine with a cached prompt. What its reader would wait for that, on a simulated engine in production.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter

from bench.cascade.gateway_process import WINDOW
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile

PROMPT_LENGTH = 2_000
OTHERS = 16
"""Streams that the engine has beside it."""
TRIES = 15
STEP_S = 0.02
ANSWER = 60


@dataclass(frozen=True, slots=True)
class Gap:
    gap_s: float
    """From the last token of the window to the first one of the stream that goes on."""
    between_s: float
    """Between two tokens of a stream."""
    tokens: int
    """Of the prompt, about."""


async def restart_gap() -> Gap:
    """Median of some tries."""
    async with SimulatedPod(Options(models=("small",), profile=Profile(step_base_s=STEP_S))) as pod:
        others = [asyncio.create_task(_stream(pod, f"other {number}", 4_000)) for number in range(OTHERS)]
        gaps, between = list[float](), list[float]()
        for number in range(TRIES):
            text = f"Story {number}: " + "once upon a time there was " * (PROMPT_LENGTH // 6)
            times, answered = await _stream(pod, text, WINDOW)
            between += [later - sooner for sooner, later in pairwise(times)]
            restarted, _ = await _stream(pod, text, 1, answered)
            gaps.append(restarted[0] - times[-1])
        for task in others:
            task.cancel()
        await asyncio.wait(others)
    return Gap(median(gaps), median(between), round(PROMPT_LENGTH * 27 / 6 / 4))


async def _stream(pod: SimulatedPod, text: str, tokens: int, start: str = "") -> tuple[list[float], str]:
    """When each token came, and the text so far. Stops after `tokens`."""
    messages = [{"role": "user", "content": text}]
    body: dict[str, object] = {"model": "small", "stream": True, "max_tokens": 5_000, "min_tokens": 4_900}
    if start:
        messages.append({"role": "assistant", "content": start})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    raw = json.dumps(body | {"messages": messages}).encode()
    host, _, port = pod.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
    times, answered = list[float](), ""
    try:
        while len(times) < tokens and (line := await reader.readline()):
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    if content := choice["delta"].get("content"):
                        times.append(perf_counter())
                        answered += content
    finally:
        writer.transport.abort()
    return times, answered
