"""The mock pods of the benches that measure what a request costs, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.overhead.gateways import ROOT


@contextmanager
def mock_pods(count: int) -> Iterator[list[int]]:
    """Their ports, until the block ends."""
    command = [sys.executable, "-m", "bench.overhead.pods", str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        yield json.loads(process.stdout.readline())
        process.stdin.close()
