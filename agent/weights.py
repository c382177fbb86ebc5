"""What a model's own `config.json` tells of a server: the bytes of KV that a token leaves.

Looks into the files as the server's process sees them, and nowhere else: nothing is downloaded, and what is not there,
may not be read or makes no sense was not said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.command_line import model_of
from routing.kv_bytes import kv_bytes_per_token

LARGEST_CONFIG = 1 << 20
"""Bytes. They take a few thousand."""

MOST_SNAPSHOTS = 16


def told_by_weights(
    words: Sequence[str], variables: Mapping[str, str], root: Path, kv_dtype: object
) -> dict[str, object]:
    """The flat fact `kv_bytes_per_token`, or none. `root`: the server's `/` as we reach it."""
    for folder in _folders(model_of(words), variables, root):
        if (config := _config(folder / "config.json")) is None:
            continue
        try:
            size = kv_bytes_per_token(config, kv_dtype if isinstance(kv_dtype, str) else None)
        except ValueError:
            return {}
        return {"kv_bytes_per_token": round(size)} if size >= 1 else {}
    return {}


def _folders(model: str, variables: Mapping[str, str], root: Path) -> Iterator[Path]:
    """Where a model's files may lie: in a folder that was named, or in Hugging Face's cache, newest first."""
    if model.startswith("/"):
        yield root / model.lstrip("/")
    elif model and ".." not in model:
        usual = variables.get("XDG_CACHE_HOME") or f"{variables.get('HOME', '')}/.cache"
        home = variables.get("HF_HOME") or f"{usual}/huggingface"
        cache = variables.get("HF_HUB_CACHE") or f"{home}/hub"
        kept = root / cache.lstrip("/") / f"models--{model.replace('/', '--')}" / "snapshots"
        try:
            yield from sorted(kept.iterdir(), key=lambda folder: -folder.stat().st_mtime)[:MOST_SNAPSHOTS]
        except OSError:
            return


def _config(path: Path) -> dict[str, Any] | None:
    try:
        if not path.is_file():  # A pipe would never end.
            return None
        with path.open("rb") as file:
            text = file.read(LARGEST_CONFIG + 1)
        said = json.loads(text) if len(text) <= LARGEST_CONFIG else None
    except (OSError, ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None
