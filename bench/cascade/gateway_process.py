"""A real gateway in a process of its own, with cascades that differ in what becomes of an answer, before one pod."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
)
from cascade.calibration_json import write_calibration_file

WINDOW, BOUND_MS = 16, 150.0
NEVER_LATE_MS = 60_000

KEEPS, NEVER = 0.0, 0.9
"""Thresholds of a margin; the pod's is 0.57."""

PLAIN, RELEASED, AT_ONCE, GIVEN_UP = "small", "auto", "open", "strict"

CASCADES: dict[str, tuple[float, dict[str, object]]] = {
    RELEASED: (KEEPS, {"tokens": WINDOW, "max_added_ttft_s": BOUND_MS / 1000}),
    AT_ONCE: (KEEPS, {"tokens": 1, "max_added_ttft_s": BOUND_MS / 1000}),
    GIVEN_UP: (NEVER, {"tokens": 4, "max_added_ttft_s": NEVER_LATE_MS / 1000}),
}
"""By name: threshold, how answers are held. `open` releases with the first token: a judge that
takes no time."""


@dataclass(frozen=True, slots=True)
class Gateway:
    port: int
    pid: int


def settings(folder: Path, pods: list[str], extra: dict[str, object] | None = None) -> Path:
    models = [_cascade(folder, name) for name in CASCADES]
    path = folder / "hearth.yaml"
    document: dict[str, object] = {"discovery": {"static": {"pods": pods}}, "model_list": models}
    path.write_text(json.dumps(document | (extra or {})))
    return path


def _cascade(folder: Path, name: str) -> dict[str, object]:
    threshold, holdback = CASCADES[name]
    guarantee, evidence = (
        QualityGuarantee(0.01, 0.95),
        CalibrationEvidence(1000, "sha256:0", kept=float(threshold == KEEPS)),
    )
    cuts = (AcceptanceThreshold(0, ANY_BUCKET, threshold),)
    file = CalibrationFile(("small", "big"), "margin", SignalStage.WINDOW, guarantee, evidence, cuts, is_promised=True)
    (folder / f"{name}.json").write_bytes(write_calibration_file(file))
    calibration = str(folder / f"{name}.json")
    return {
        "model_name": name,
        "cascade": {"models": ["small", "big"], "calibration": calibration, "holdback": holdback},
    }


@asynccontextmanager
async def running(config: Path) -> AsyncIterator[Gateway]:
    listen = ("--listen", "127.0.0.1:0", "--metrics-listen", "off", "--admin-listen", "off")
    command = (sys.executable, "-m", "gateway", "serve", "--config", str(config), *listen, "--log-level", "info")
    gateway = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert gateway.stdout is not None
    drain: asyncio.Task[None] | None = None
    try:
        port = await _port(gateway.stdout)
        drain = asyncio.create_task(_drain(gateway.stdout))
        yield Gateway(port, gateway.pid)
    finally:
        gateway.terminate()
        await gateway.wait()
        if drain is not None:
            await drain


async def _port(stdout: asyncio.StreamReader) -> int:
    """Where it listens; it has found its pod by then."""
    port = ready = 0
    async with asyncio.timeout(60):
        while not (port and ready):
            line = json.loads(await stdout.readline())
            if line["event"] == "listening":
                port = int(line["traffic"][0].rpartition(":")[2])
            ready = ready or (line["event"] == "pod_state_changed" and line["state"] == "ready")
    return port


async def _drain(stdout: asyncio.StreamReader) -> None:
    while await stdout.readline():
        pass
