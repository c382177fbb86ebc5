"""Which CPython the benches run on: the quicker of the environment's own and the system's of the same version.

What others ship are release builds. An interpreter that a version manager has built usually lacks profile-guided
optimisation, takes a third longer, and is not what a distribution has. Both run the same installed packages.

    python -m bench.interpreter     prints the words that a command line for it begins with
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

SYSTEM = Path("/usr/bin")
CLEARLY = 0.95
"""The system's has to take less than this share of the time."""

TRIAL = """
import time, timeit
class Word:
    def __init__(self, text): self.text = text
    def size(self): return len(self.text)
def work():
    table = {}
    for number in range(2000):
        word = Word(str(number))
        table[word.text] = table.get(word.text, 0) + word.size()
    return table
print(min(timeit.repeat(work, timer=time.process_time, number=2, repeat=200)))
"""


def best_command() -> list[str]:
    """The words before `-m`. Takes a second: both are timed."""
    binary = SYSTEM / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not binary.exists() or binary.resolve() == Path(sys.executable).resolve():
        return [sys.executable]
    if _seconds(str(binary)) >= CLEARLY * _seconds(sys.executable):
        return [sys.executable]
    return ["env", f"PYTHONPATH={sysconfig.get_path('purelib')}", str(binary)]


def _seconds(binary: str) -> float:
    output = subprocess.run([binary, "-c", TRIAL], capture_output=True, text=True, check=True).stdout
    return float(output)


if __name__ == "__main__":
    print(*best_command())
