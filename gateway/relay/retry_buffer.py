"""What is kept of a request while its answer streams: should the stream be cut, another pod is asked with it.

Bounded for one request and for all together; who finds no room streams as well, and cannot be gone on with.
"""

from __future__ import annotations

from gateway.config.limits import Limits
from gateway.http.client_request import Budget


class Keeping:
    """One request's."""

    __slots__ = ("_budget", "_counted", "_limits", "_tenant", "answer_bytes", "body", "is_off")

    def __init__(self, budget: Budget, limits: Limits, *, is_off: bool, tenant: str | None = None) -> None:
        """`budget` is that of all bodies that are kept; `is_off`: nobody is to go on, so none is."""
        self._tenant = tenant
        self._budget = budget
        self._limits = limits
        self._counted = 0
        self.answer_bytes = limits.kept_answer_bytes
        """So much of the answer is kept."""
        self.is_off = is_off
        self.body = b""

    def keep(self, body: bytes) -> None:
        """Keep a body, where there is room."""
        if body and not self.is_off and len(body) <= self._limits.kept_body_bytes and self._take(body):
            self._counted = len(body)
            self.body = body

    def count_in(self) -> None:
        """An attempt begins: what is kept counts for as long as that takes."""
        if self.body and not self._counted and self._take(self.body):
            self._counted = len(self.body)

    def count_out(self) -> None:
        """It has ended; the next one, if there is one, follows at once."""
        if self._counted:
            self._budget.give(self._counted, self._tenant)
            self._counted = 0

    def _take(self, body: bytes) -> bool:
        return self._budget.take(len(body), self._tenant)
