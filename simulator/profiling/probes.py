"""Measures a pod over HTTP: sizes, idle prefills, decode steps by batch and context, prompts beside decodes.

Five minutes at most: every experiment is sized by what those before it showed, and is left out when time is up. Nobody
else may use the pod meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf, log
from random import Random
from statistics import median

from simulator.profiling.histograms import link_of, speculation_of
from simulator.profiling.observations import DecodeSteps, IdlePrefill, Intrusion, Seen, Shape
from simulator.profiling.pod_client import PodClient, PodError, Timing

LIMIT_S = 300.0

FIRST_ID, LAST_ID = 200, 1900
"""Token ids of prompts: in every vocabulary, and none that controls anything."""

IDLE_TOKENS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 4096, 8192, 16_384, 32_768, 65_536)

BUDGETS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
"""What `--max-num-batched-tokens` usually is."""

MAX_BATCH = 512

SHORT_CONTEXT = 64
"""Longer ones are put into the cache before they are decoded from."""

DECODE_STEPS = 24
"""Steps over which a step time is averaged."""

PREFILL_SUM = "vllm:request_prefill_time_seconds_sum"

Report = Callable[[str], None]


class Probe:
    """One measuring of one pod."""

    def __init__(self, pod: PodClient, report: Report, *, seed: int = 0, limit_s: float = LIMIT_S) -> None:
        self._pod = pod
        self._report = report
        self._random = Random(seed)
        self._clock = asyncio.get_running_loop().time
        self._limit_s = limit_s
        self._until_s = self._clock() + limit_s

    async def measure(self, max_num_batched_tokens: int | None = None) -> Seen:
        """Return all observations. `max_num_batched_tokens` is measured where it is None. Raises `PodError`."""
        cache = await self._pod.cache_config()
        block = int(float(cache.get("block_size") or 16))
        blocks = int(float(cache.get("num_gpu_blocks") or 0)) - 1
        if blocks < 1 or not self._pod.max_model_len:
            raise PodError(f"{self._pod.url}: no vllm:cache_config_info, or no max_model_len: is this vLLM?")
        await self._pod.complete(self._fresh(64), 4)
        # Of its own traffic, not of the random prompts that come now.
        speculation = speculation_of(await self._pod.exposition())
        idle = await self._idle_prefills(blocks * block)
        self._report(f"idle prefills: {len(idle)}")
        caches = await self._caches_prefixes(block)
        decode, seqs = await self._decodes(blocks * block)
        self._report(f"decode steps: {len(decode)}, at most {seqs} sequences")
        budget = max_num_batched_tokens or await self._budget(blocks * block, decode)
        self._report(f"at most {budget} tokens a step")
        shape = Shape(block, blocks, self._pod.max_model_len, seqs, budget, caches, speculation)
        intrusions = await self._intrusions(shape)
        self._report(f"prompts beside decodes: {len(intrusions)}")
        facts = {"model": self._pod.model, "vllm": await self._pod.version()}
        link = link_of([await self._pod.exposition()])
        return Seen(shape, tuple(idle), tuple(decode), tuple(intrusions), link, facts)

    def _fresh(self, tokens: int) -> list[int]:
        """A prompt that no cache has."""
        return [self._random.randint(FIRST_ID, LAST_ID) for _ in range(tokens)]

    def _has(self, share: float) -> bool:
        """Whether so much of the time is left."""
        return self._until_s - self._clock() > share * self._limit_s

    # --- Alone on the engine ------------------------------------------------------------------------------------------

    async def _idle_prefills(self, kv_tokens: int) -> list[IdlePrefill]:
        seen: list[IdlePrefill] = []
        max_size = min(self._pod.max_model_len - 8, kv_tokens)
        lengths = [*(tokens for tokens in IDLE_TOKENS if tokens < max_size), max_size]
        for tokens in lengths:
            repeats = 5 if tokens <= 512 else 3
            for _ in range(repeats):
                if not self._has(0.6):
                    return seen
                seen.append(await self._idle_prefill(tokens))
        return seen

    async def _idle_prefill(self, tokens: int) -> IdlePrefill:
        before = await self._pod.metrics()
        timing = await self._pod.complete(self._fresh(tokens), 2)
        after = await self._pod.metrics()
        engine_s = after.get(PREFILL_SUM, 0.0) - before.get(PREFILL_SUM, 0.0)
        return IdlePrefill(tokens, timing.ttft_s, engine_s if engine_s > 0 else None)

    async def _caches_prefixes(self, block: int) -> bool:
        prompt = self._fresh(4 * block + 1)
        await self._pod.complete(prompt, 1)
        return (await self._pod.complete(prompt, 1)).cached_tokens >= 4 * block

    # --- Decoding -----------------------------------------------------------------------------------------------------

    async def _decodes(self, kv_tokens: int) -> tuple[list[DecodeSteps], int]:
        """Step times by batch size, doubled until the engine has some wait; then with long contexts."""
        seen: list[DecodeSteps] = []
        sequences, max_size = 1, MAX_BATCH
        while sequences == 1 or (sequences <= max_size and self._has(0.4)):
            step, running = await self._decode(sequences, 16)
            if running < sequences:
                max_size = running
                if running > max((one.sequences for one in seen), default=0):
                    step, _ = await self._decode(running, 16)
                    seen.append(step)
                break
            seen.append(step)
            sequences *= 2
        limit = max(one.sequences for one in seen) if max_size == MAX_BATCH else max_size
        max_tokens = self._pod.max_model_len - 2 * DECODE_STEPS - 8
        for sequences in sorted({1, min(4, limit), max(limit // 2, 1), limit}):
            context = min(max_tokens, int(0.9 * kv_tokens / sequences) - 2 * DECODE_STEPS)
            if context > SHORT_CONTEXT and self._has(0.35):
                seen.append((await self._decode(sequences, context))[0])
        return [one for one in seen if one.step_s < inf], limit

    async def _decode(self, sequences: int, context: int) -> tuple[DecodeSteps, int]:
        """Let so many decode at once; the second figure is how many the engine ran at most."""
        # Who starts first decodes while the others prefill: all must still be there when the last one comes.
        spare = 8 + 2 * sequences
        output = min(DECODE_STEPS + spare, self._pod.max_model_len - context - 1)
        timings = [Timing(0.0) for _ in range(sequences)]
        # Each with KV of its own: one prefix for all would be read from a processor's cache.
        prompts = [self._fresh(context) for _ in range(sequences)]
        if context > SHORT_CONTEXT:
            for prompt in prompts:
                await self._pod.complete(prompt, 1)
        async with asyncio.TaskGroup() as group:
            for prompt, timing in zip(prompts, timings, strict=True):
                group.create_task(self._pod.complete(prompt, output, timing))
        # Those behind a full batch begin when somebody has ended.
        first_end_s = min(one.ended_s for one in timings)
        return _decode_steps(timings, context), sum(one.first_s <= first_end_s for one in timings)

    # --- Steps that do both -------------------------------------------------------------------------------------------

    async def _budget(self, kv_tokens: int, decode: list[DecodeSteps]) -> int:
        """Tokens of a step at most: a burst of prompts is counted out by the steps of one that decodes beside it."""
        prompt = min(self._pod.max_model_len - 8, 8192)
        burst = min(max(2, 32_768 // prompt), int(0.8 * kv_tokens) // prompt, max(one.sequences for one in decode) - 1)
        if burst < 1:
            return BUDGETS[3]
        companion, others = Timing(0.0), [Timing(0.0) for _ in range(burst)]
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(
                self._pod.complete(self._fresh(8), min(400, self._pod.max_model_len - 16), companion)
            )
            await companion.until(4)
            for one in others:
                group.create_task(self._pod.complete(self._fresh(prompt), 1, one))
            for one in others:
                await one.until(1)
            beside.cancel()
        first, last = others[0].sent_s, max(one.first_s for one in others)
        steps = sum(first < at <= last + 1e-4 for at in companion.events_s)
        # The first step may have begun before all of the burst was there.
        each = burst * prompt / max(steps - 0.5, 0.5)
        return min(BUDGETS, key=lambda budget: abs(log(budget / each)))

    async def _intrusions(self, shape: Shape) -> list[Intrusion]:
        seen: list[Intrusion] = []
        max_tokens = shape.max_model_len - 8
        sizes = [tokens for tokens in (16, 128, 512, 1024, 4096) if tokens < max_tokens] + [min(max_tokens, 16_384)]
        beside = shape.max_num_seqs - 1
        for sequences in sorted({min(count, beside) for count in (1, 4, 8)} - {0}):
            for tokens in sizes:
                for _ in range(2):
                    if self._has(0.02):
                        seen += await self._intrude(sequences, tokens, 0)
            # Cached but for one block's rest: what is left is the request itself.
            cached = max_tokens // shape.block_size * shape.block_size
            for _ in range(3 if shape.caches_prefixes else 0):
                if self._has(0.02):
                    seen += await self._intrude(sequences, 0, cached)
        return seen

    async def _intrude(self, sequences: int, tokens: int, cached: int) -> list[Intrusion]:
        """Let one prompt come while others decode; what it has cached is put there before."""
        prompt = self._fresh(tokens + cached)
        if cached:
            await self._pod.complete(prompt, 1)
        companions, intruder = [Timing(0.0) for _ in range(sequences)], Timing(0.0)
        before, tail = 8, 6
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(
                    self._pod.complete(self._fresh(16), min(400, self._pod.max_model_len - 32), companion)
                )
                for companion in companions
            ]
            for companion in companions:
                await companion.until(before)
            await group.create_task(self._pod.complete(prompt, 1, intruder))
            await companions[0].until(len(companions[0].events_s) + tail)
            for one in running:
                one.cancel()
        extra_s = _extra_s(companions[0].events_s, intruder.sent_s, intruder.first_s)
        if extra_s is None:
            return []
        computed = intruder.prompt_tokens - intruder.cached_tokens
        kv = sum(16 + len(one.events_s) for one in companions)
        return [Intrusion(sequences, kv, computed, intruder.cached_tokens, extra_s, intruder.ttft_s)]


def _decode_steps(timings: list[Timing], context: int) -> DecodeSteps:
    """The mean step between the last one's first token and the first one's last."""
    begun = [one for one in timings if one.events_s]
    start = max(one.first_s for one in begun)
    end = min(one.events_s[-1] for one in begun)
    spans = []
    for one in begun:
        inside = [at for at in one.events_s if start <= at <= end]
        if len(inside) > 2:
            spans.append((inside[-1] - inside[0]) / (len(inside) - 1))
    tokens = [sum(at <= (start + end) / 2 for at in one.events_s) for one in begun]
    kv = sum(context + count for count in tokens)
    return DecodeSteps(len(begun), kv, median(spans) if spans else inf)


def _extra_s(events_s: list[float], sent_s: float, first_s: float) -> float | None:
    """How much later a stream's events come by an intruder that was sent and had its token at these times."""
    before = [at for at in events_s if at <= sent_s]
    after = [at for at in events_s if at >= first_s - 1e-3]
    if len(before) < 4 or not after:
        return None
    gaps = [later - sooner for sooner, later in zip(before[-8:], before[-7:], strict=False)]
    inside = [at for at in events_s if before[-1] < at <= after[0]]
    return after[0] - before[-1] - len(inside) * median(gaps)
