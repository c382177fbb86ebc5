"""Engines that are looked at as connections are, and those who wait for them: in values, without either."""

from __future__ import annotations

from routing.stall_detection import StallBounds, StallDetector, StallVerdict, StreamWatch

BOUNDS = StallBounds(
    factor=4.0, engine_min_s=2.0, stream_min_s=8.0, buffered_output_grace_s=20.0, initial_s=3.0, half_life_s=60.0
)
LOOK_S = 0.5


class Watch:
    """Engines that are looked at every half second, and who waits for what they say."""

    def __init__(self, max_s: float = 300.0, bounds: StallBounds = BOUNDS) -> None:
        self.now_s = 0.0
        self.lateness = StallDetector(bounds, max_s)

    def asks(
        self, engine: str = "e", expected_s: float = 0.1, *, streams_tokens: bool = True, holds_back: bool = False
    ) -> StreamWatch:
        return self.lateness.watch(
            engine, "m", expected_s, self.now_s, streams_tokens=streams_tokens, holds_back=holds_back
        )

    def streams(self, engine: str = "e", expected_s: float = 0.1, *, holds_back: bool = False) -> StreamWatch:
        """One whose client has had its first token."""
        vigil = self.asks(engine, expected_s, holds_back=holds_back)
        self.now_s += LOOK_S
        vigil.data_received(self.now_s, has_started=True)
        return vigil

    def flows(self, *vigils: StreamWatch, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            for vigil in vigils:
                vigil.data_received(self.now_s, has_started=True)

    def silent_for(
        self, seconds: float, *vigils: StreamWatch, flowing: tuple[StreamWatch, ...] = ()
    ) -> dict[int, StallVerdict]:
        """Who is found late within so many seconds in which these have nothing, while those go on."""
        found: dict[int, StallVerdict] = {}
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            for vigil in flowing:
                vigil.data_received(self.now_s, has_started=True)
            for number, vigil in enumerate(vigils):
                late = vigil.check_silence(self.now_s) if number not in found else None
                if late is not None:
                    found[number] = late
        return found

    def bound_s(self, engine: str = "e") -> float:
        bound_s = self.lateness.max_silence_s(engine, "m")
        assert bound_s is not None
        return bound_s
