"""One run: every mode's Envoy with either picker, and every load given to each of them in turn."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.extproc import loads
from bench.extproc.modes import BOTH, BUFFERED, HEADERS, OBSERVED, PLAIN, Mode, modes
from bench.extproc.pickers import BARE, OURS, Picker, bare, ours
from bench.overhead.accounts import CpuBook, tree
from bench.overhead.bodies import Bodies
from simulator.envoy import envoy_running

LARGE_MODES = (PLAIN, BUFFERED, BOTH)
CHUNK_MODES = (PLAIN, BUFFERED, OBSERVED, BOTH)
PROCESSES = 2
NO_PICKER = "-"

Figure = tuple[str, str, str]
"""Picker, mode, quantity."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One Envoy with its picker."""

    mode: Mode
    picker: str
    port: int
    pids: loads.Pids


class Bench:
    """Figures of one run, and what was wrong with answers."""

    def __init__(self, pods: Sequence[int], folder: Path, envoy: Path) -> None:
        self._pods = [f"http://127.0.0.1:{port}" for port in pods]
        self._folder = folder
        self._envoy = envoy
        self.figures: dict[Figure, list[float]] = defaultdict(list)
        self.faults: list[str] = []

    async def run(self, rounds: int, seconds: float) -> None:
        """All loads on all cells, in another order each round."""
        async with AsyncExitStack() as stack:
            cells = await self._cells(stack)
            small, large = Bodies(loads.SMALL_BYTES, tokens=16), loads.large_bodies()
            for number in range(rounds):
                turn = number % len(cells)
                for cell in (*cells[turn:], *cells[:turn]):
                    await self._unary(cell, small, seconds)
                    if cell.mode.key in CHUNK_MODES:
                        await self._chunks(cell, seconds)
                    if cell.mode.key in LARGE_MODES:
                        await self._large(cell, large, seconds)
        await self._several(seconds)

    async def _cells(self, stack: AsyncExitStack) -> list[Cell]:
        pickers = [
            await stack.enter_async_context(ours(self._pods, self._folder / OURS)),
            await stack.enter_async_context(bare(self._pods, self._folder / BARE)),
        ]
        baseline = [Picker(NO_PICKER, (), 0)]
        pairs = [(mode, picker) for mode in modes() for picker in (baseline if mode.key == PLAIN else pickers)]
        return [await self._cell(stack, mode, picker) for mode, picker in pairs]

    async def _cell(self, stack: AsyncExitStack, mode: Mode, picker: Picker, *, threads: int = 1) -> Cell:
        config = mode.config(picker.addresses, self._pods, logs_to_picker=picker.name == OURS)
        folder = self._folder / f"envoy-{mode.key}-{picker.name}-{threads}"
        envoy = await stack.enter_async_context(envoy_running(self._envoy, config, folder, threads=threads))
        pids = {"envoy": envoy.pid} | ({"picker": picker.pid} if picker.pid else {})
        return Cell(mode, picker.name, urlsplit(envoy.url).port or 0, pids)

    # -- one load on one cell --------------------------------------------------------------------------------------

    async def _unary(self, cell: Cell, bodies: Bodies, seconds: float) -> None:
        if cell.mode.key == HEADERS:
            cost = await loads.heads(cell.port, cell.pids, seconds)
        else:
            cost = await loads.unary_responses(cell.port, cell.pids, bodies, seconds)
        self._note(cell, "request", cost)
        self.figures[cell.picker, cell.mode.key, "rate"].append(cost.units / seconds)

    async def _chunks(self, cell: Cell, seconds: float) -> None:
        self._note(cell, "chunk", await loads.chunks(cell.port, cell.pids, seconds))

    async def _large(self, cell: Cell, bodies: Bodies, seconds: float) -> None:
        windows = loads.Windows(cell.pids)
        waits = await loads.large_prompts(cell.port, bodies, max(seconds, 3.0))
        self._note(cell, "long prompt", windows.cost(waits.count, ()))
        for share in (50, 99):
            self.figures[cell.picker, cell.mode.key, f"large p{share}"].append(waits.at(share / 100) * 1e3)
        self._complain(cell, waits.faults)
        self._log(
            f"{cell.picker} {cell.mode.key}: 220 KB, p50 {waits.at(0.5) * 1e3:.1f} ms, p99 {waits.at(0.99) * 1e3:.1f}"
        )

    def _note(self, cell: Cell, unit: str, cost: loads.Cost) -> None:
        for part, us in cost.us.items():
            self.figures[cell.picker, cell.mode.key, f"{part} per {unit}"].append(us)
        self._complain(cell, cost.faults)
        parts = ", ".join(f"{part} {us:.1f}" for part, us in cost.us.items())
        self._log(f"{cell.picker} {cell.mode.key}: us per {unit}: {parts} ({cost.units})")

    def _complain(self, cell: Cell, faults: Sequence[str]) -> None:
        self.faults += [f"{cell.picker} {cell.mode.key}: {fault}" for fault in faults]

    # -- several processes behind one listener -----------------------------------------------------------------------

    async def _several(self, seconds: float) -> None:
        """Which share of the work the busiest of several workers gets, each an endpoint of the one picker cluster."""
        (mode,) = [mode for mode in modes() if mode.key == BUFFERED]
        async with AsyncExitStack() as stack:
            picker = await stack.enter_async_context(ours(self._pods, self._folder / "several", processes=PROCESSES))
            cell = await self._cell(stack, mode, picker, threads=PROCESSES)
            books = [CpuBook(pid) for pid in tree(picker.pid)[1:]]
            before = [book.used_s() for book in books]
            await self._note_several(cell, seconds)
            used = sorted(
                (book.used_s() - used_before for book, used_before in zip(books, before, strict=True)), reverse=True
            )
        busiest = used[:PROCESSES]
        self.figures[OURS, "several", "busiest share"].append(busiest[0] / max(1e-9, sum(busiest)))

    async def _note_several(self, cell: Cell, seconds: float) -> None:
        cost = await loads.unary_responses(cell.port, cell.pids, Bodies(loads.SMALL_BYTES, tokens=16), seconds * 2)
        self._complain(cell, cost.faults)
        for part, us in cost.us.items():
            self.figures[OURS, "several", f"{part} per request"].append(us)

    @staticmethod
    def _log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
