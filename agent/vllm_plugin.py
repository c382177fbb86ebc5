"""A stat logger for vLLM (`vllm.stat_logger_plugins`): tells the agent beside it each step's queue, running and KV use.

Runs inside vLLM's API server and must never cost it anything: one datagram to loopback, not waited for, at most one in
`EVERY_S` unless the figures say that a queue came or went; no fault of ours leaves `record`. Imports only what vLLM has
anyhow. Does nothing unless `HEARTH_AGENT_LOADS` names the agent's UDP address (HOST:PORT), as the agent's flag does.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from vllm.v1.metrics.loggers import StatLoggerBase

VARIABLE = "HEARTH_AGENT_LOADS"

EVERY_S = 0.02
"""Some steps take a millisecond."""


class AgentStatLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM stands in another environment
    """One per engine; vLLM makes them."""

    def __init__(self, vllm_config: object, engine_index: int = 0) -> None:
        self._rank = engine_index
        self._port = served_port(sys.argv[1:])
        self._socket = _open(os.environ.get(VARIABLE, ""))
        self._told_s = 0.0
        self._told: tuple[int, int] | None = None

    def record(
        self,
        scheduler_stats: object,
        iteration_stats: object,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Called by vLLM after each step; the stats are no stable interface, so each field may be missing."""
        if self._socket is None or scheduler_stats is None:
            return
        with suppress(Exception):  # whatever it is, the engine must go on
            self._tell(scheduler_stats)

    def log_engine_initialized(self) -> None:
        """There is nothing to say yet."""

    def _tell(self, stats: object) -> None:
        running, waiting = getattr(stats, "num_running_reqs", 0), getattr(stats, "num_waiting_reqs", 0)
        now_s = time.monotonic()
        is_turn = self._told is None or (not running, not waiting) != (not self._told[0], not self._told[1])
        if self._socket is None or not (is_turn or now_s - self._told_s >= EVERY_S):
            return
        self._told_s, self._told = now_s, (running, waiting)
        usage = min(1.0, max(0.0, float(getattr(stats, "kv_cache_usage", 0.0))))
        word = {"port": self._port, "rank": self._rank, "running": running, "waiting": waiting, "kv_usage": usage}
        self._socket.send(json.dumps(word).encode())


def served_port(words: Sequence[str]) -> int:
    """Of `vllm serve ... --port N`; 8000 where nothing is said."""
    for at, word in enumerate(words):
        value = word.removeprefix("--port=") if word.startswith("--port=") else ""
        if word == "--port" and at + 1 < len(words):
            value = words[at + 1]
        if value.isdecimal():
            return int(value)
    return 8000


def _open(where: str) -> socket.socket | None:
    """A socket that never blocks; None where no agent is named."""
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal():
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    opened.setblocking(False)
    opened.connect((host.strip("[]"), int(port)))
    return opened
