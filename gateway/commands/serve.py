"""`hearth serve`: settings put together, then a gateway, or a team of them, run on uvloop until a signal ends it."""

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
from gateway.cluster.child import CannotStart
from gateway.cluster.supervisor import supervise
from gateway.cluster.worker_pool import needs_supervisor
from gateway.config.parsed import Given
from gateway.config.sources import WORDS, gather
from gateway.config.values import Settings
from gateway.discovery.locations import ELSEWHERE
from gateway.runtime.ports import CannotListen
from tenancy.document import Fault, Invalid

COLLECT_AFTER = (20_000, 20, 100)
"""Thresholds of the garbage collector's generations."""


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """The exit status: 0 after a stop by signal, 1 where it could not start, 2 where what it was told is wrong."""

    def reread() -> Settings:
        return read(arguments, variables)

    try:
        settings = reread()
        ready_interpreter()
        run_all = supervise if needs_supervisor(settings) else serve
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_all(settings, reread, variables))
    except Invalid as invalid:
        sys.stderr.write("".join(f"hearth: {fault}\n" for fault in invalid.faults))
        return 2
    except CannotListen as trouble:
        sys.stderr.write(f"hearth: {trouble}\n")
        return 1
    except CannotStart as trouble:
        sys.stderr.write("".join(f"hearth: {line}\n" for line in trouble.lines))
        return 1
    return 0


def read(arguments: Namespace, variables: Mapping[str, str]) -> Settings:
    """The settings that flags, environment and file give together. Raises `Invalid`."""
    flags: dict[str, Given] = {}
    for word in WORDS:
        if (value := getattr(arguments, word.field, None)) is not None:
            flags[word.field] = value
    config = arguments.config or variables.get("HEARTH_CONFIG")
    settings = gather(flags, variables, Path(config) if config else None)
    if not settings.static_pods and settings.pod_file is None and settings.places == ELSEWHERE:
        raise Invalid(
            [Fault("--pod", "no pod is named: use --pod URL, --pod-file FILE, or discovery in a --config FILE")]
        )
    return settings


def ready_interpreter() -> None:
    """What every process of ours does first."""
    _keep_standard_streams()
    _raise_file_limit()
    _spare_the_collector()


def _keep_standard_streams() -> None:
    """Who closed our standard output must not find its log lines in the next socket that takes its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _spare_the_collector() -> None:
    """Keep full collections small and rare: walking all that was ever loaded held the loop for a tenth of a second, and
    with it the slowest hundredth of all first tokens. Requests leave next to no cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _raise_file_limit() -> None:
    """Every stream takes two descriptors; the soft limit of 1,024 is for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
