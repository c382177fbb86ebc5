"""The seam between a climb and whoever knows the client's body."""

from __future__ import annotations

from typing import Protocol

from gateway.cascades.logprobs import Trim
from routing.request import Request


class Shell(Protocol):
    """Makes a rung's request of the client's body; what is carried from then on asks for that one."""

    def ask(self, model: str, top: int | None) -> tuple[Request, Trim | None]:
        """The request to a model. `top`: with so many log-probabilities for each token, which the `Trim` takes out."""
        ...
