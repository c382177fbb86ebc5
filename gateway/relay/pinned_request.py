"""What is carried to an engine that nobody chose: it alone has what is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from routing.pods import Engine
from routing.request import Request


@dataclass(frozen=True, slots=True)
class Errand:
    """A request for what one engine has stored: it is placed nowhere and charged to nobody."""

    request: Request
    engine: Engine
    handover: None = None

    def first_token(self, now_s: float) -> None:
        """Nothing was computed."""
