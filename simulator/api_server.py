"""An API server's time for requests on their way to the engine: one after another. Knows no clock and no engine."""

from __future__ import annotations

from simulator.profile import Profile


class ApiServer:
    """The single thread that parses requests and hands them to the engine. Times in engine seconds."""

    __slots__ = ("_free_at", "_profile")

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._free_at = 0.0

    @property
    def is_instant(self) -> bool:
        """Whether requests take no time here."""
        return self._profile.request_s == 0.0 and self._profile.request_token_s == 0.0

    def arrive(self, prompt_tokens: int, now: float) -> float:
        """Count a request in and return when the engine gets it: after those that came before it."""
        self._free_at = max(self._free_at, now) + self._profile.request_handling_s(prompt_tokens)
        return self._free_at
