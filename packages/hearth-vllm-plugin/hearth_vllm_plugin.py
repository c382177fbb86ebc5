"""A stat logger plugin for vLLM: reports running and waiting requests and KV usage to the agent on the same node.

Runs inside vLLM's API server and must not slow it down: it sends one non-blocking UDP datagram to loopback, at most one
per 20 ms unless the engine becomes idle or busy, and `record` never raises. Imports only what vLLM itself needs. Does
nothing unless the variable `HEARTH_AGENT_LOAD_LISTEN` holds the agent's UDP address (HOST:PORT).
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

VARIABLE = "HEARTH_AGENT_LOAD_LISTEN"

MIN_INTERVAL_S = 0.02
"""Minimum between two datagrams: some steps take a millisecond."""


class AgentStatLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM is installed in another environment
    """One per engine, created by vLLM."""

    def __init__(self, vllm_config: object, engine_index: int = 0) -> None:
        self._rank = engine_index
        self._port = served_port(sys.argv[1:])
        self._socket = _open(os.environ.get(VARIABLE, ""))
        self._sent_s = 0.0
        self._sent: tuple[int, int] | None = None

    def record(
        self,
        scheduler_stats: object,
        iteration_stats: object,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Report the stats of one step. They are not a stable interface, so each field may be missing."""
        if self._socket is None or scheduler_stats is None:
            return
        with suppress(Exception):  # the engine must not be affected
            self._send(scheduler_stats)

    def log_engine_initialized(self) -> None:
        """Do nothing: there are no stats yet."""

    def _send(self, stats: object) -> None:
        running, waiting = getattr(stats, "num_running_reqs", 0), getattr(stats, "num_waiting_reqs", 0)
        now_s = time.monotonic()
        is_turn = self._sent is None or (not running, not waiting) != (not self._sent[0], not self._sent[1])
        if self._socket is None or not (is_turn or now_s - self._sent_s >= MIN_INTERVAL_S):
            return
        self._sent_s, self._sent = now_s, (running, waiting)
        usage = min(1.0, max(0.0, float(getattr(stats, "kv_cache_usage", 0.0))))
        word = {"port": self._port, "rank": self._rank, "running": running, "waiting": waiting, "kv_usage": usage}
        self._socket.send(json.dumps(word).encode())


def served_port(words: Sequence[str]) -> int:
    """Return the port of `vllm serve ... --port N`; 8000 without that option."""
    for at, word in enumerate(words):
        value = word.removeprefix("--port=") if word.startswith("--port=") else ""
        if word == "--port" and at + 1 < len(words):
            value = words[at + 1]
        if value.isdecimal():
            return int(value)
    return 8000


def _open(where: str) -> socket.socket | None:
    """Return a connected non-blocking UDP socket, or None if no agent is configured."""
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal():
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    opened.setblocking(False)
    opened.connect((host.strip("[]"), int(port)))
    return opened
