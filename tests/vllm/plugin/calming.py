"""A general plugin of vLLM for machines with two cores: nothing spins, so that KV transfers get their turn.

Stands in .venv-vllm by setup.sh; acts only where `CALM_VLLM` is set. Two things spin, and on two cores they starved
NIXL's transfers for 4 to 30 s, now and then for more than 100 s:

1. Engine and worker, where they are two processes (our pods have them in one), wait for each other by `sched_yield`
   for a second after each message, four of them in a pair of pods. The kernel hardly lets anybody else in between. They
   sleep half a millisecond instead. Who then waits on a socket may miss its call and looks again only after 5 s: here
   after 50 ms.
2. NIXL's progress thread holds UCX's lock while the worker wants to post a transfer (160 ms a post; 0.2 ms without).
   There is no such thread here: the worker's own loop, which turns while anything is under way, progresses UCX.

Measured on two cores, with and without three busy loops beside them: 180 of 180 transfers, the slowest decode leg of 12
tokens 0.29 s.
"""

import importlib
import os
import select
import sys
from typing import Any

PAUSE_S = 0.0005

LOOK_AGAIN_MS = 50


def calm() -> None:
    """Called by vLLM in each of its processes, before it makes its queues and its NIXL agent."""
    if not os.environ.get("CALM_VLLM"):
        return
    queues: Any = importlib.import_module("vllm.distributed.device_communicators.shm_broadcast")
    queues.sched_yield = pause
    queues.SHM_READER_RECHECK_INTERVAL_MS = LOOK_AGAIN_MS
    try:
        nixl: Any = importlib.import_module("nixl._api")
    except ImportError:
        return
    without_thread(sys.modules[nixl.nixl_agent.__module__])


def pause() -> None:
    """In the place of a spin: let go of the core for a moment."""
    select.select((), (), (), PAUSE_S)


def without_thread(api: Any) -> None:
    """Have NIXL agents do without a progress thread, and lock what vLLM's handshake thread shares with its loop."""
    agent = api.nixl_agent
    made = agent.__init__
    if getattr(made, "is_calm", False):
        return

    def make(self: Any, name: str, config: Any = None, *words: Any, **named: Any) -> None:
        if config is not None:
            config.enable_pthread = False
            config.sync_mode = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        made(self, name, config, *words, **named)

    make.is_calm = True  # type: ignore[attr-defined]
    agent.__init__ = make
