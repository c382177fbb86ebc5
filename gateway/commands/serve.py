"""`hearth serve`: loads the settings, then runs a gateway or a supervisor on uvloop until a signal."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import uvloop

from gateway.app.serving import serve
from gateway.cluster.child import ChildStartFailed
from gateway.cluster.supervisor import supervise
from gateway.cluster.worker_pool import needs_supervisor
from gateway.config.discovery import NO_SOURCES
from gateway.config.flags import GivenValue
from gateway.config.loading import SETTINGS, load_settings
from gateway.config.settings import Settings
from gateway.runtime.ports import CannotListen
from tenancy.document import ConfigError, InvalidDocument

GC_THRESHOLDS = (20_000, 20, 100)
"""Thresholds of the garbage collector's generations."""

MAPPED_BLOCK_BYTES = 8 << 20
"""Half of the freed memory that glibc keeps at the top of the heap."""


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Return the exit status: 0 after a stop by signal, 1 if it could not start, 2 for invalid settings."""

    def reread() -> Settings:
        return read_start_settings(arguments, variables)

    try:
        settings = reread()
        prepare_interpreter()
        run_all = supervise if needs_supervisor(settings) else serve
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_all(settings, reread, variables))
    except InvalidDocument as invalid:
        sys.stderr.write("".join(f"hearth: {fault}\n" for fault in invalid.errors))
        return 2
    except CannotListen as trouble:
        sys.stderr.write(f"hearth: {trouble}\n")
        return 1
    except ChildStartFailed as trouble:
        sys.stderr.write("".join(f"hearth: {line}\n" for line in trouble.lines))
        return 1
    return 0


def read_start_settings(arguments: Namespace, variables: Mapping[str, str]) -> Settings:
    """Return the settings from flags, environment and file. Raises `InvalidDocument`."""
    flags: dict[str, GivenValue] = {}
    for word in SETTINGS:
        if (value := getattr(arguments, word.field, None)) is not None:
            flags[word.field] = value
    config = arguments.config or variables.get("HEARTH_CONFIG")
    settings = load_settings(flags, variables, Path(config) if config else None)
    if not settings.configured_pods and settings.pod_file is None and settings.sources == NO_SOURCES:
        raise InvalidDocument(
            [
                ConfigError(
                    "--pod",
                    "no pod is named: use --pod URL, --pod-file FILE, or a --config FILE with discovery"
                    " (`hearth init` writes one; `hearth demo` needs no pods)",
                )
            ]
        )
    return settings


def prepare_interpreter() -> None:
    """Prepare the interpreter of a process: standard streams, file limit, memory, garbage collector."""
    _keep_standard_streams()
    _raise_file_limit()
    _keep_freed_memory()
    _tune_garbage_collector()


def _keep_standard_streams() -> None:
    """Open closed standard streams: otherwise a socket could get their number, and log lines be written to it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _keep_freed_memory() -> None:
    """Make glibc keep the memory that large requests take and free. It would return all above .5 MiB at the top of the
    heap to the kernel, and with bodies of 128 KiB every tenth request would then pay for 128 page faults.

    When a block that was mapped is freed, glibc maps only larger ones from then on, and keeps twice its size at the top
    of the heap (mallopt(3), M_MMAP_THRESHOLD). No page of the block is touched. Other allocators ignore it.
    """
    bytearray(MAPPED_BLOCK_BYTES)


def _tune_garbage_collector() -> None:
    """Make full collections small and rare: traversing all loaded modules blocked the loop for 100 ms, and set the p99
    of TTFT. Requests create almost no reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _raise_file_limit() -> None:
    """Raise the soft limit to the hard one: every stream takes two descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
