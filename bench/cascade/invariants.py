"""Invariants of cascades, checked on every stream and every configuration: no byte is taken back, and streams that
pass through are not judged.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.cascade.gateway_process import CASCADES, settings
from gateway.config.loading import check_file
from tenancy.document import InvalidDocument
from tests.gateway.cascades.fuzzed_holdback import play
from tests.gateway.http.scene import staged


def fuzzed(streams: int) -> int:
    """Streams of any API, in any reads, with any verdict, perhaps cut short: how many showed a client a wrong byte."""

    def run() -> int:
        return sum(not play(seed) for seed in range(streams))

    return int(staged(run))


def rejected_behind_envoy() -> int:
    """Of cascades that judge, beside `extproc`: how many the configuration lets through."""
    with tempfile.TemporaryDirectory() as folder:
        config = settings(Path(folder), ["http://127.0.0.1:1"], {"extproc": {"listen": "127.0.0.1:9002"}})
        try:
            check_file(config, {})
        except InvalidDocument as invalid:
            return len(CASCADES) - sum("extproc.return_listen" in str(fault) for fault in invalid.errors)
    return len(CASCADES)
