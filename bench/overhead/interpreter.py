"""Which CPython the gateway is measured on: the quicker of the environment's own and the system's of the same version.

The others in the table are release builds. An interpreter that a version manager has built usually lacks profile-guided
optimisation, is a fifth slower, and is not what a container image has. Both run the same installed packages.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A CPython, and the folder of packages it has to be told of; empty where it knows them."""

    binary: str
    words: str
    packages: str = ""


def best_interpreter() -> Interpreter:
    """Measure both, some hundred milliseconds each."""
    own = Interpreter(sys.executable, f"CPython {sys.version.split()[0]}")
    binary = SYSTEM / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not binary.exists() or binary.resolve() == Path(sys.executable).resolve():
        return own
    share = _seconds(str(binary)) / _seconds(sys.executable)
    if share >= CLEARLY:
        return own
    words = f"the system's {_said(str(binary), '--version')} ({share:.2f} of the time of the environment's own)"
    return Interpreter(str(binary), words, sysconfig.get_path("purelib"))


def _seconds(binary: str) -> float:
    return float(_said(binary, "-c", TRIAL))


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
