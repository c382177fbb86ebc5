"""Makes what was heard comparable: ids and dates are masked, numbers rounded, long texts shortened. Values."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

ID = re.compile(
    r"(?:(?:chatcmpl-tool|chatcmpl|cmpl|resp|msg|rs|fc|call|embd|tokn)[-_])+[0-9A-Za-z][0-9A-Za-z_-]{5,}"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?<![0-9A-Za-z])[0-9a-f]{16,}(?:-[0-9a-f]+)*(?![0-9A-Za-z])"
)
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z?|\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")
MOMENT = re.compile(r'("(?:created|created_at|completed_at)": ?)\d+(?:\.\d+)?')

SET = re.compile(r"frozenset\(\{([^}]*)\}\)")

LONGEST = 160
"""Characters of a text that are kept; of a longer one its length and its digest."""

DIGITS = 6


class Masks:
    """Of one record: each id has a number, in the order in which they come."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen: dict[str, str] = {}

    def text(self, said: str) -> str:
        said = said.replace(self._folder, "<folder>")
        said = SET.sub(lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", said)
        said = MOMENT.sub(r"\g<1>0", DATE.sub("<date>", said))
        return ID.sub(lambda found: self._seen.setdefault(found[0], f"<id {len(self._seen)}>"), said)

    def value(self, value: Any, *, shortens: bool = True) -> Any:
        """JSON values."""
        match value:
            case dict():
                return {self.text(str(name)): self.value(held, shortens=shortens) for name, held in value.items()}
            case list() | tuple():
                return [self.value(held, shortens=shortens) for held in value]
            case float():
                return float(f"{value:.{DIGITS}g}")
            case str():
                return shortened(self.text(value)) if shortens else self.text(value)
            case _:
                return value

    def body(self, raw: bytes) -> dict[str, Any]:
        """A body, decoded where it is JSON or a stream of events, with the digest of its bytes, masked."""
        said = self.text(raw.decode("utf-8", "replace"))
        told: dict[str, Any] = {"bytes": len(said), "sha256": digest(said)}
        if said.startswith(("{", "[")):
            try:
                return told | {"json": self.value(json.loads(said))}
            except ValueError:
                pass
        if "data: " in said:
            return told | {"events": events(said)}
        return told | {"text": shortened(said)}


def events(said: str) -> list[Any]:
    """Of a stream. What an event has in common with the one before is left out."""
    told: list[Any] = []
    before: Any = None
    for event in said.split("\n\n"):
        lines = [line.removeprefix("data: ") for line in event.split("\n") if line.startswith("data: ")]
        try:
            held: Any = json.loads("\n".join(lines))
        except ValueError:
            held = event
        told.append(_less(held, before))
        before = held
    return told


def _less(held: Any, before: Any) -> Any:
    if not isinstance(held, dict) or not isinstance(before, dict) or set(held) != set(before):
        return held
    return {name: value for name, value in held.items() if value != before[name]}


def shortened(said: str) -> str:
    return said if len(said) <= LONGEST else f"{said[:40]}... {len(said)} characters {digest(said)}"


def digest(said: str) -> str:
    return sha256(said.encode()).hexdigest()[:12]
