"""The cost of the prefix indexes: memory per block, and the time of an event, a look-up, a route received, a join.

Two indexes: the approximate index of every gateway process (blocks of bytes, from what was routed) and the precise one
of a host's index process (blocks of tokens, from KV events). Each case is built in a process of its own and its memory
taken from the system. No HTTP. The last lines compute a fleet of 1,000 pods and 100 million blocks on paper, from these
figures.

    python -m bench.index [--quick] [--keep FILE]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from time import perf_counter
from typing import ParamSpec, TypeVar

from routing.blocks import BLOCK_ENDS, Prompt, pack_prompt
from routing.decision.router import Router
from routing.pods import EngineShape, Pod, PodState
from routing.precise.kv_events import BlockRemoved, BlockStored, EngineHash
from routing.precise.precise_index import PreciseIndex
from routing.precise.token_chains import BlockHashes, TokenPrompt
from routing.prefix_index import PrefixIndex
from routing.replica_state import OpenRequest, PlacedUpdate, ReplicaState
from scorers.registry import routings

P = ParamSpec("P")
T = TypeVar("T")

MODEL = "model"
BLOCK_TOKENS = 16
BYTES_PER_TOKEN = 4
PROMPT_BYTES = 32_000
PROMPT_BLOCKS = next(at for at, end in enumerate(BLOCK_ENDS) if end > PROMPT_BYTES)
"""Of a prompt of 8,000 tokens."""
PROMPT_LINKS = 500
"""The same in an engine's blocks."""
FEW, MANY = 8, 1_000
MILLION = 1_000_000
PAPER_PODS, PAPER_BLOCKS = 1_000, 100 * MILLION
LOOKUPS = 2_000

METHOD = """\
Prompts of 8,000 tokens that share nothing, so that every block is one entry: the worst case, for blocks that engines
share cost one entry between them. bytes: growth of the process by blocks. put: to enter a block (shadow: a prompt
routed; exact: told by an event). look: one look-up of an 8,000-token prompt, half of it held by one engine. drop: to
take a block out again. heard: a route that another gateway tells, per block. Microseconds.\
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One index of one size."""

    name: str
    engines: int
    blocks: int
    bytes_each: float
    put_us: float
    look_us: float
    drop_us: float


def shadow(engines: int, blocks: int) -> Measured:
    """The shadow index, filled through its own words."""
    random, each = Random(1), max(1, blocks // engines // PROMPT_BLOCKS)
    prompts = [
        (slot, Prompt(_hashes(random, PROMPT_BLOCKS), BLOCK_ENDS, PROMPT_BYTES))
        for _ in range(each)
        for slot in range(engines)
    ]
    sample = [prompt for _, prompt in random.sample(prompts, min(len(prompts), LOOKUPS))]
    wanted = [Prompt(one.blocks[: PROMPT_BLOCKS // 2] + _hashes(random, 9), BLOCK_ENDS, PROMPT_BYTES) for one in sample]
    index = PrefixIndex(max_blocks_per_engine=blocks)
    for slot in range(engines):
        index.resize(slot, 1 << 40)
    before = _resident()

    def fill() -> None:
        for slot, prompt in prompts:
            index.prefill_done(index.insert(slot, prompt))

    count = len(prompts) * PROMPT_BLOCKS
    put_us = _us(fill) / count
    # What the prompts themselves hold is the caller's: hashes live in the index from here on.
    held = _resident() - before + count * HASH_BYTES
    among = (1 << engines) - 1
    look_us = _us(lambda: [list(index.match(prompt, among)) for prompt in wanted]) / len(wanted)

    def forget() -> None:
        for slot in range(engines):
            index.clear(slot)

    drop_us = _us(forget) / count
    return Measured("shadow", engines, count, held / count, put_us, look_us, drop_us)


HASH_BYTES = 44
"""A 64-bit integer of Python's and its place in a tuple: prompts and index share them, and the prompts were there
before the index was measured.
"""


def exact(engines: int, blocks: int) -> Measured:
    """The exact index, filled with events of 32 blocks as vLLM sends them for a chunk of prefill."""
    random, each = Random(2), max(1, blocks // engines // PROMPT_LINKS)
    index = PreciseIndex()
    names = [f"http://10.0.{number // 256}.{number % 256}:8000" for number in range(engines)]
    for name in names:
        index.add_engine(name, BLOCK_TOKENS)
    before, put_s, seed = _resident(), 0.0, 0
    kept: list[tuple[str, list[int], list[EngineHash]]] = []
    for _ in range(each):
        for name in names:
            seed += 1
            tokens = [random.randrange(1 << 17) for _ in range(BLOCK_TOKENS)] * PROMPT_LINKS
            tokens[0] = seed
            hashes: list[EngineHash] = [random.getrandbits(64) for _ in range(PROMPT_LINKS)]
            event = BlockStored(hashes, None, tokens, BLOCK_TOKENS)
            begin = perf_counter()
            index.apply(name, [event])
            put_s += perf_counter() - begin
            if len(kept) < LOOKUPS // 20:
                kept.append((name, tokens, hashes))
    count = each * engines * PROMPT_LINKS
    held = _resident() - before
    wanted = [tokens[: len(tokens) // 2] + [7] * (len(tokens) // 2) for _, tokens, _ in kept]
    prompts = [TokenPrompt(b"".join(token.to_bytes(4, "little") for token in tokens)) for tokens in wanted]
    look_us = _us(lambda: [index.lookup(BlockHashes(prompt)) for prompt in prompts]) / len(prompts)
    drops = [(name, BlockRemoved(hashes)) for name, _, hashes in kept]

    def take_out() -> None:
        for name, event in drops:
            index.apply(name, [event])

    drop_us = _us(take_out) / (len(drops) * PROMPT_LINKS)
    return Measured("exact", engines, count, held / count, put_s / count * 1e6, look_us, drop_us)


def measure_updates(routes: int) -> float:
    """Microseconds a block of a route that another gateway told, applied to a router: a joiner pays it for the past."""
    random, router = Random(3), Router(routings()["warm"])
    urls = [f"http://10.0.0.{number}:8000" for number in range(64)]
    for url in urls:
        router.put_pod(Pod(url, PodState.READY, frozenset({MODEL}), ready_since_s=0.0))
        router.reshape_pod(url, [EngineShape(None, kv_tokens=MILLION, block_tokens=BLOCK_TOKENS)])
    command = [
        PlacedUpdate(
            OpenRequest(number, urls[number % len(urls)], 8_000.0, 0.6, 8_256.0, 1),
            MODEL,
            pack_prompt(Prompt(_hashes(random, PROMPT_BLOCKS), BLOCK_ENDS, PROMPT_BYTES)),
        )
        for number in range(1, routes + 1)
    ]
    applier = ReplicaState(router)
    return _us(lambda: applier.apply(1, 1, command, 0.0)) / (routes * PROMPT_BLOCKS)


def _hashes(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.getrandbits(64) for _ in range(count))


def _us(work: Callable[[], object]) -> float:
    gc.disable()
    begin = perf_counter()
    work()
    took_s = perf_counter() - begin
    gc.enable()
    return took_s * 1e6


def _resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def table(measured: Sequence[Measured]) -> str:
    """The cases as lines of text."""
    head = f"{'index':<7} {'engines':>7} {'blocks':>10} {'bytes':>7} {'put':>7} {'look':>8} {'drop':>7}"
    lines = [
        f"{one.name:<7} {one.engines:7,} {one.blocks:10,} {one.bytes_each:7.0f} {one.put_us:7.2f} {one.look_us:8.1f} "
        f"{one.drop_us:7.2f}"
        for one in measured
    ]
    return "\n".join([head, *lines])


def on_paper(measured: Sequence[Measured], update_us: float) -> str:
    """1,000 pods and 100 million engine blocks, from the figures of the largest fleet measured."""
    of = {one.name: one for one in measured if one.engines == MANY}
    tokens = PAPER_BLOCKS * BLOCK_TOKENS
    shadow_blocks = tokens / PROMPT_BYTES * BYTES_PER_TOKEN * PROMPT_BLOCKS
    gigabyte = 1 << 30
    room = PAPER_BLOCKS * of["exact"].bytes_each / gigabyte, shadow_blocks * of["shadow"].bytes_each / gigabyte
    return f"""\
On paper: {PAPER_PODS:,} pods, {PAPER_BLOCKS / 1e6:,.0f} million blocks of {BLOCK_TOKENS} tokens \
({tokens / 1e9:.1f} G tokens of KV, {tokens / PAPER_PODS / 1e6:.1f} M a pod), nothing shared:
  exact, per host:     {room[0]:6.1f} GB, and {1e6 / of["exact"].put_us:,.0f} blocks a second on one core
  shadow, per process: {room[1]:6.1f} GB ({shadow_blocks / 1e6:.1f} million of our blocks for the same prompts)
  a joiner hears all of it in {shadow_blocks * update_us / 1e6:,.0f} s of one core, at {update_us:.2f} us a block"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.index", description="What knowing who holds what costs.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the blocks")
    parser.add_argument("--keep", type=Path, help="write what is printed to this file too")
    options = parser.parse_args(arguments)
    blocks = MILLION // 10 if options.quick else MILLION
    measured = []
    for work in (shadow, exact):
        for engines in (FEW, MANY):
            print(f"{work.__name__}, {engines:,} engines ...", file=sys.stderr)
            measured.append(_in_subprocess(work, engines, max(blocks, engines * PROMPT_LINKS)))
    update_us = _in_subprocess(measure_updates, 2_000)
    head = f"bench-index, {datetime.now(UTC):%Y-%m-%d}, {machine()}"
    update_text = f"heard: {update_us:.2f} us a block"
    report = "\n\n".join([head, METHOD, f"{table(measured)}\n{update_text}", on_paper(measured, update_us)])
    print(report)
    if options.keep:
        options.keep.write_text(report + "\n")
    return 0


def machine() -> str:
    """In words that name no machine."""
    return f"{os.cpu_count()} shared cores, {platform.python_implementation()} {platform.python_version()}"


def _in_subprocess(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """In a process of its own, so that its memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments, **named).result()


if __name__ == "__main__":
    sys.exit(main())
