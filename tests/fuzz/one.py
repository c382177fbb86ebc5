"""One target fed for long, in this process: `python -m tests.fuzz.one NAME INPUTS SECONDS [LEAD]`.

LEAD is `coverage` or `chance`. Ends with what was fed.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom

from tests.fuzz.mutating import LONGEST, mutated
from tests.fuzz.registry import CORPUS, TARGETS, seeds
from tests.fuzz.target import Target

OUT = Path(__file__).resolve().parents[2] / "out" / "fuzz"

LONGEST_S = 10
"""For one input: whatever takes longer hangs."""


def main() -> None:
    """Feed it, led by coverage where atheris is there."""
    name, inputs, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    target = TARGETS[name]
    (OUT / name).mkdir(parents=True, exist_ok=True)
    is_led = find_spec("atheris") is not None and sys.argv[4:] != ["chance"]
    lead = led_by_coverage if is_led else led_by_chance
    lead(target, inputs, seconds)


def led_by_chance(target: Target, inputs: int, seconds: int) -> None:
    """Changes of the corpus, drawn afresh."""
    kept, draw, until_s = seeds(target.name), SystemRandom(), time.monotonic() + seconds
    done = 0
    while done < inputs and time.monotonic() < until_s:
        raw = mutated(kept, target.words, draw)
        signal.alarm(LONGEST_S)
        try:
            target.feed(raw)
        except BaseException:
            (OUT / f"{target.name}.broke").write_bytes(raw)
            raise
        done += 1
    signal.alarm(0)
    print(f"stat::number_of_executed_units: {done}")


def led_by_coverage(target: Target, inputs: int, seconds: int) -> None:
    """The way of libFuzzer; what it found worth keeping lies in out/fuzz/NAME."""
    import atheris  # noqa: PLC0415 - for long runs only

    atheris.instrument_all()
    found = OUT / target.name
    for seed in (CORPUS / target.name).iterdir():
        shutil.copy(seed, found / seed.name)
    dictionary = OUT / f"{target.name}.words"
    dictionary.write_text("".join(f'"{_spelled(word)}"\n' for word in target.words))
    flags = [
        *(f"-runs={inputs}", f"-max_total_time={seconds}", f"-timeout={LONGEST_S}", f"-max_len={LONGEST}"),
        *(
            f"-dict={dictionary}",
            f"-artifact_prefix={OUT}/{target.name}.",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
        ),
    ]
    atheris.Setup([sys.argv[0], *flags, str(found)], target.feed)
    atheris.Fuzz()


def _spelled(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
