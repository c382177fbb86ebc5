"""All targets, by name, and the corpus of each."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz import clients, neighbours, papers, peers, resuming
from tests.fuzz.target import Target

CORPUS = Path(__file__).parent / "corpus"

TARGETS: dict[str, Target] = {
    target.name: target for part in (clients, peers, papers, neighbours, resuming) for target in part.TARGETS
}


def seeds(name: str) -> list[bytes]:
    """What is kept for a target, in the order of the files' names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
