"""One run: starts the gateways, gives every load to each of them in turn, and gathers what it cost."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median

from bench.overhead import loads, report
from bench.overhead.accounts import memory
from bench.overhead.bodies import Bodies
from bench.overhead.gateways import Kind, Running, start

CONNECTIONS = 64
LARGE_CONNECTIONS = 16
UNARY_RATE = 400.0
FIRST_TOKEN_RATE = 100.0
SOAK_LOOKS = 40
ATTEMPTS = 3


class Bench:
    """One run: pods, gateways, figures."""

    def __init__(self, pods: Sequence[int], folder: Path) -> None:
        self._pod_ports = tuple(pods)
        self._pods = [f"http://127.0.0.1:{port}" for port in pods]
        self._folder = folder
        self._starts = 0
        self.figures: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.faults: dict[str, list[str]] = defaultdict(list)
        self.growth: float | None = None

    async def start(self, kind: Kind) -> Running:
        self._starts += 1
        return await start(kind, self._pods, self._folder / f"{kind.name}-{self._starts}")

    async def rounds(self, gateways: Sequence[Running], rounds: int, seconds: float) -> None:
        """All loads on all gateways, in another order each round."""
        for number in range(rounds):
            turn = number % max(1, len(gateways))
            order = [*gateways[turn:], *gateways[:turn]]
            for gateway in order:
                await self._costs(gateway, seconds)
            await self._first_tokens(order, seconds)
        for gateway in gateways:
            self.figures[gateway.kind.name, report.RSS].append(memory(gateway.pid).rss / 1e6)

    async def idle(self, kind: Kind, count: int) -> None:
        """Memory of streams that are only open, on a gateway of its own."""
        gateway = await self.start(kind)
        before, with_streams, is_open = await loads.idle_streams(gateway.port, gateway.pid, count)
        await gateway.stop()
        self._log(
            f"{kind.name}: {is_open} open, RSS {before.rss >> 10} -> {with_streams.rss >> 10} KB,"
            f" PSS {before.pss >> 10} -> {with_streams.pss >> 10} KB"
        )
        if is_open < count:
            self.faults[kind.name].append(f"only {is_open} of {count} idle streams were open")
        if is_open:
            self.figures[kind.name, report.PER_STREAM].append((with_streams.rss - before.rss) / 1024 / is_open)

    async def soak(self, kind: Kind, seconds: float) -> None:
        """RSS under a steady mix: grown between the second fifth and the last, in percent."""
        gateway = await self.start(kind)
        looks: list[int] = []
        for _ in range(SOAK_LOOKS):
            slot_s = seconds / SOAK_LOOKS
            faults = await loads.mix(gateway.port, slot_s)
            self.faults[kind.name] += faults
            looks.append(memory(gateway.pid).rss)
        await gateway.stop()
        fifth = SOAK_LOOKS // 5
        early, late = median(looks[fifth : 2 * fifth]), median(looks[-fifth:])
        self.growth = (late / early - 1) * 100
        self._log(f"{kind.name}: RSS of the soak in MB: {' '.join(f'{look / 1e6:.1f}' for look in looks)}")

    async def _costs(self, gateway: Running, seconds: float) -> None:
        name, port, pid = gateway.kind.name, gateway.port, gateway.pid
        small, large = Bodies(1_400, tokens=16), Bodies(128 << 10, tokens=16, count=64)
        loads_by_name: dict[str, Callable[[], Awaitable[loads.Cost]]] = {
            report.UNARY: lambda: loads.saturated(port, pid, small, CONNECTIONS, seconds),
            report.LARGE: lambda: loads.saturated(port, pid, large, LARGE_CONNECTIONS, seconds),
            report.PACED: lambda: loads.unary(port, pid, small, UNARY_RATE, seconds),
            report.FAST: lambda: loads.streams(port, pid, 100, 10, seconds),
            report.MANY: lambda: loads.streams(port, pid, 500, 50, seconds),
        }
        lines: list[str] = []
        for key, load in loads_by_name.items():
            cost = await self._undisturbed(name, load)
            self.figures[name, key].append(cost.us)
            if key == report.MANY:
                self.figures[name, report.UNARY_SATURATED].append(cost.with_ends_us)
            lines.append(f"{key} {cost.us:.1f} ({cost.by_ticks_us:.0f}) x {cost.units}{'!' * cost.is_disturbed}")
        self._log(f"{name}: {', '.join(lines)}; {len(self.faults[name])} faults")

    async def _undisturbed(self, name: str, load: Callable[[], Awaitable[loads.Cost]]) -> loads.Cost:
        """A load, again where the machine did not keep up with it."""
        for attempt in range(ATTEMPTS):
            cost = await load()
            self.faults[name] += cost.faults
            if not cost.is_disturbed or attempt == ATTEMPTS - 1:
                break
        return cost

    async def _first_tokens(self, gateways: Sequence[Running], seconds: float) -> None:
        direct = await loads.first_tokens(self._pod_ports, FIRST_TOKEN_RATE, seconds)
        lines = [f"direct {direct.at(0.5) * 1e3:.2f}/{direct.at(0.99) * 1e3:.2f}"]
        for gateway in gateways:
            through, name = await loads.first_tokens((gateway.port,), FIRST_TOKEN_RATE, seconds), gateway.kind.name
            self.figures[name, report.ADDED_P50].append((through.at(0.5) - direct.at(0.5)) * 1e3)
            self.figures[name, report.ADDED_P99].append((through.at(0.99) - direct.at(0.99)) * 1e3)
            self.faults[name] += through.faults
            lines.append(f"{name} {through.at(0.5) * 1e3:.2f}/{through.at(0.99) * 1e3:.2f}")
        self._log(f"TTFT p50/p99 in ms: {', '.join(lines)}")

    @staticmethod
    def _log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
