"""The seeds that have broken a promise once, kept in a file beside this one."""

from __future__ import annotations

from pathlib import Path

SEEDS = Path(__file__).with_name("seeds.txt")


def read_seeds(path: Path = SEEDS) -> list[int]:
    """Those kept, in the order they were found."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [int(line) for line in lines if line]


def keep_seed(seed: int, why: str, path: Path = SEEDS) -> bool:
    """Add one, unless it is there."""
    if seed in read_seeds(path):
        return False
    with path.open("a", encoding="utf-8") as kept:
        kept.write(f"{seed}  # {' '.join(why.split())[:100]}\n")
    return True
