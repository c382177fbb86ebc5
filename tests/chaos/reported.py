"""What gateways say of requests in their logs, which outlive a gateway that is killed: resumed, refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.chaos.crowd import CROWD
from tests.chaos.sdks import TOO_MANY


class Line(msgspec.Struct):
    """What is read of a log line."""

    event: str = ""
    resumes: int = 0
    resume_failure: str | None = None
    wasted_tokens: int | None = None
    status: int = 0
    reason: str | None = None
    tenant: str | None = None


@dataclass(slots=True)
class Told:
    """Over all gateways of a run."""

    requests: int = 0
    resumed: int = 0
    """Streams and answers that lost a pod, some of them more than once, and went on."""
    cuts: int = 0
    """How often they did."""
    wasted_tokens: int = 0
    not_resumed: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    """By limits, which were told with 429."""

    def add(self, line: Line) -> None:
        self.requests += 1
        if line.resumes:
            self.resumed += 1
            self.cuts += line.resumes
        if line.resume_failure:
            self.not_resumed[line.resume_failure] += 1
        if line.status == TOO_MANY and line.reason:
            self.rejected[line.reason] += 1
        self.wasted_tokens += line.wasted_tokens or 0

    def since(self, before: Told) -> Told:
        """What was told after that: logs go on from scene to scene."""
        return Told(
            self.requests - before.requests,
            self.resumed - before.resumed,
            self.cuts - before.cuts,
            self.wasted_tokens - before.wasted_tokens,
            self.not_resumed - before.not_resumed,
            self.rejected - before.rejected,
        )

    def __str__(self) -> str:
        why = ", ".join(f"{count} {why}" for why, count in self.not_resumed.most_common()) or "none"
        return f"{self.resumed} resumed over {self.cuts} cuts ({self.wasted_tokens} tokens wasted), not resumed: {why}"


_line = msgspec.json.Decoder(Line).decode


def read_told(logs: Iterable[Path]) -> Told:
    """What these logs tell; a line that was cut off by a kill tells nothing."""
    found = Told()
    for log in logs:
        for raw in log.read_bytes().splitlines():
            try:
                line = _line(raw)
            except msgspec.MsgspecError:
                continue
            if (
                line.event == "request_completed" and line.tenant != CROWD
            ):  # Of its requests most are meant to be refused.
                found.add(line)
    return found
