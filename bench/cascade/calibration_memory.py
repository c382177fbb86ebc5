"""Peak memory of a calibration on many rows, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from bench.target import Target

MAX_MB = 600.0

CHILD = """
import resource, sys
from gateway import cli
status = cli.main(sys.argv[1:])
print(status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def measure_memory(rows: int) -> Target:
    """Calibrate on a generated file of so many rows. Returns its peak resident memory beside what is wanted."""
    random = Random(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.csv"
        with path.open("w") as file:
            file.write("bucket,score@small,score@large,margin@small\n")
            for _ in range(rows):
                gains = random.random() < 0.2
                margin = min(1.0, max(0.0, random.gauss(0.3 if gains else 0.7, 0.2)))
                file.write(f"{random.choice(('code', 'chat'))},{int(not gains)},1,{margin:.6f}\n")
        words = ["cascade", "calibrate", "--data", str(path), "--max-loss", "0.02"]
        done = subprocess.run([sys.executable, "-c", CHILD, *words], capture_output=True, text=True, check=True)
    status, peak = done.stderr.split()[-2:]
    if status != "0":
        raise RuntimeError(f"calibration of {rows:,} rows ended with status {status}: {done.stderr}")
    unit = 1024.0 if sys.platform != "darwin" else 1.0
    return Target(f"{rows:,} rows: peak memory in MB", MAX_MB, int(peak) * unit / 1e6)
