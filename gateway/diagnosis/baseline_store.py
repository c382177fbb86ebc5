"""The fleet's baseline: learned from looks without a finding, kept in a file that is replaced as one.

Files are read and written in a thread. A file that cannot be read is reported, and kept until the first save.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from diagnosis.baseline import Baseline, InvalidBaseline, dump_baseline, learned, load_baseline
from diagnosis.facts import FleetFacts
from diagnosis.finding import Diagnosis, Severity
from gateway.diagnosis.request_sample import STEPS
from gateway.runtime.event_log import LogFunction
from gateway.runtime.files import replace_file

SAVE_INTERVAL_S = 600.0

MAX_BYTES = 64 << 20


class BaselineStore:
    """One per gateway. `file`: None where nothing is kept."""

    def __init__(self, file: Path | None, log_event: LogFunction, clock: Callable[[], float]) -> None:
        self.baseline: Baseline | None = None
        self._file = file
        self._log_event = log_event
        self._clock = clock
        self._saved_s = clock()
        self._looks = 0
        self._is_used = asyncio.Lock()
        """One change at a time: a look that is being counted in must not undo a reset."""

    async def load(self) -> None:
        """Read the file, if there is one."""
        if self._file is None:
            return
        try:
            self.baseline = await asyncio.to_thread(read_baseline, self._file)
        except FileNotFoundError:
            return
        except (OSError, InvalidBaseline) as error:
            self._log_event("warning", "baseline_failed", file=str(self._file), error=str(error))

    async def learn(self, facts: FleetFacts, diagnosis: Diagnosis) -> None:
        """Count a look in, unless a finding shows that requests are slower than they have to be."""
        self._looks += 1
        # Windows of half a minute overlap: one in `STEPS` is counted.
        if self._looks % STEPS or any(finding.severity is not Severity.ADVICE for finding in diagnosis.findings):
            return
        async with self._is_used:
            self.baseline = await asyncio.to_thread(learned, self.baseline or Baseline(), facts)
        if self._file is not None and self._clock() - self._saved_s >= SAVE_INTERVAL_S:
            await self.save()

    async def save(self, *, resets: bool = False) -> dict[str, object]:
        """Write the file. Returns what it holds, as JSON values; `error` where it could not be written.

        `resets`: what was learned before is dropped first, because the fleet was changed on purpose.
        """
        async with self._is_used:
            return await self._save(resets=resets)

    async def _save(self, *, resets: bool) -> dict[str, object]:
        if resets:
            self.baseline = Baseline()
        self._saved_s = self._clock()
        held = self.baseline or Baseline()
        shown: dict[str, object] = {
            "file": None if self._file is None else str(self._file),
            "requests": round(sum(each.times.requests for each in held.times.values())),
            "hours": len({hour for _, hour in held.times}),
            "figures": len(held.levels),
        }
        if self._file is None:
            return {**shown, "error": "no file is configured: set doctor.baseline"}
        try:
            await asyncio.to_thread(write_baseline, self._file, held)
        except OSError as error:
            self._log_event("warning", "baseline_failed", file=str(self._file), error=str(error))
            return {**shown, "error": error.strerror or str(error)}
        return shown


def read_baseline(file: Path) -> Baseline:
    """Read a baseline from a file. Raises OSError and `InvalidBaseline`."""
    with file.open("rb") as opened:
        body = opened.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise InvalidBaseline(f"more than {MAX_BYTES} bytes")
    try:
        return load_baseline(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidBaseline(f"is not JSON: {error}") from None


def write_baseline(file: Path, baseline: Baseline) -> None:
    """Replace a file by a baseline: readers see the old one or the new one. Raises OSError."""
    replace_file(file, msgspec.json.encode(dump_baseline(baseline)))
