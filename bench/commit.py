"""The commit that a bench measures, for the head of its table."""

from __future__ import annotations

import subprocess
from pathlib import Path


def measured_commit() -> str:
    """Return the commit of this checkout, with `-dirty` where files differ from it; `unknown` outside a repository."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return described.stdout.strip() or "unknown"
