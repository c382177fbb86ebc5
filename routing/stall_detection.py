"""Whether an engine that says nothing is late, or silent for good: judged by how long it was ever silent before.

An engine shows its pulse by every byte of every answer. The longest silence that it broke is learned for each engine
and model, and fades while it is listened to. A silence is too long at some times that length; while somebody's prompt
is being computed, at as many times what that was predicted to take. Only time that was listened through counts: not
while nobody was asked, not while we ourselves were held up, and not while the client does not read.

A silence is the engine's for as long as whoever is told now has waited for it. What another stream was silent for
beyond that is its own: the engine was alive. So a stream that is mute for good neither teaches that its engine is slow
nor hides behind it, however few others there are.

Signs of life of an engine are also answers that begin and end between two looks, answers of another model that it
serves, and what other gateways report of it. Knows no connection and no clock; whoever looks tells the time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from statistics import median_low

ENGINE_TTL_S = 3600.0
"""Of an engine that nobody has asked for so long nothing is known any more."""


@dataclass(frozen=True, slots=True)
class StallBounds:
    """When silence is too long. Seconds, but for `times`."""

    factor: float = 4.0
    """A silence may be so many times as long as the longest of late."""
    engine_min_s: float = 10.0
    """No engine that falls silent altogether is given up sooner."""
    stream_min_s: float = 15.0
    """Nor is one stream while others of its engine flow: an engine may put one aside for lack of room."""
    buffered_output_grace_s: float = 30.0
    """For so long may an engine hold back what it makes: calls of tools until they are whole, thoughts not shown."""
    initial_s: float = 10.0
    """For so long is an engine of which nothing is known taken to have been silent; single streams for no time."""
    half_life_s: float = 120.0
    """Of listening, after which a silence counts for half as long."""

    @property
    def max_between_checks_s(self) -> float:
        """What is longer between two looks was our own doing: nobody listened."""
        return self.engine_min_s / 4


class StallVerdict(Enum):
    """What a silence has turned out to be."""

    ENGINE = auto()
    """Nothing has come from the engine, to anybody who waits for it."""
    STREAM = auto()
    """Others have tokens; this one has none."""


class LongestSilence:
    """The longest silence that was broken, fading."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def decay(self, listened_s: float, half_s: float) -> None:
        self.seconds *= 0.5 ** (listened_s / half_s)

    def observe(self, silent_s: float) -> None:
        self.seconds = max(self.seconds, silent_s)


class ModelEngines:
    """The engines that serve one model: what keeps one of them silent keeps the others as well."""

    __slots__ = ("pulses", "stalls")

    def __init__(self, found: Counter[StallVerdict]) -> None:
        """`found` counts what is given up."""
        self.pulses: dict[str, EngineActivity] = {}
        self.stalls = found

    def median_silence_s(self) -> float:
        """The longest silence of late of the middle one among them."""
        return median_low(pulse.all_streams.seconds for pulse in self.pulses.values())

    def forget(self, now_s: float) -> list[EngineActivity]:
        """Let those go that nobody has asked for long. Returns them."""
        gone = [name for name, pulse in self.pulses.items() if now_s - pulse.checked_s > ENGINE_TTL_S]
        return [self.pulses.pop(name) for name in gone]


class EngineActivity:
    """One engine's, serving one model."""

    __slots__ = (
        *("_bound_as_of_s", "_bound_s", "_bounds", "_broken_s", "_most_s", "_peers", "_quiet_s"),
        *(
            "alive_s",
            "single_streams",
            "hung_s",
            "has_output",
            "waiting",
            "checked_s",
            "max_between_checks_s",
            "of_engine",
        ),
        "all_streams",
    )

    def __init__(
        self, bounds: StallBounds, most_s: float, peers: ModelEngines, of_engine: set[EngineActivity], now_s: float
    ) -> None:
        """`of_engine`: the pulses of the same engine, this one included, whichever model they are of."""
        self.of_engine = of_engine
        of_engine.add(self)
        self._bounds = bounds
        self._most_s = most_s
        self._peers = peers
        self._bound_s, self._bound_as_of_s = 0.0, -inf
        self._quiet_s = self._broken_s = 0.0
        self.max_between_checks_s = bounds.max_between_checks_s
        self.checked_s = now_s
        self.has_output = False
        """To somebody, since the look before this one."""
        self.alive_s = 0.0
        """Listened through up to its last byte before this look, without the silences that it broke."""
        self.hung_s = -inf
        """When it was last taken for silent for good: so is whoever has asked it before then."""
        self.all_streams = LongestSilence(bounds.initial_s)
        """Silences of all its streams at once."""
        self.single_streams = LongestSilence(0.0)
        """Silences of single ones while it was alive."""
        self.waiting: set[StreamWatch] = set()
        """Those whose answers have not ended."""

    def __repr__(self) -> str:
        return f"<Pulse quiet for {self.silent_s:.1f} s, {len(self.waiting)} listening>"

    @property
    def silent_s(self) -> float:
        """Listened through since the last byte for anybody."""
        return 0.0 if self.has_output else self._quiet_s

    def request_sent(self, now_s: float) -> None:
        """It is asked something. Where nobody was listening, its silence begins now."""
        if now_s - self.checked_s > self.max_between_checks_s:
            self.check(now_s)
            self._quiet_s = 0.0

    def check(self, now_s: float) -> None:
        """Time has passed in which somebody listened."""
        if now_s <= self.checked_s:
            return
        self._settle()
        passed_s, self.checked_s = min(now_s - self.checked_s, self.max_between_checks_s), now_s
        self._quiet_s += passed_s

    def output_received(self, now_s: float, silent_s: float, *, teaches: bool = True) -> None:
        """It has said something to somebody who has had nothing for so long: so long has it been silent, as we know.

        Where that does not teach how long it is silent, it only shows that it lives.
        """
        self.check(now_s)
        self.hung_s, self.has_output = -inf, True
        broken_s = min(silent_s, self._quiet_s)
        if broken_s <= self._broken_s:  # Who was heard before in this very look has waited as long.
            return
        if teaches:
            for longest in (self.all_streams, self.single_streams):
                longest.decay(broken_s - self._broken_s, self._bounds.half_life_s)
            self.all_streams.observe(broken_s)
        self._broken_s = broken_s

    def seen_alive(self, now_s: float) -> None:
        """The engine has answered somebody whom this pulse does not know."""
        if self.waiting:
            self.output_received(now_s, inf, teaches=False)

    def _settle(self) -> None:
        """Reckon with what was said in the last look only now: its other streams may have been told a moment later."""
        if self.has_output:
            self.alive_s += self._quiet_s - max(0.0, self._broken_s - self.max_between_checks_s)
            self._quiet_s = self._broken_s = 0.0
            self.has_output = False

    def mark_hung(self, now_s: float) -> None:
        """Take it for silent for good. Perhaps it is not: next time several may hear nothing for twice as long as now.

        One stream alone may be what was lost, and is no reason to bear with the next one for longer.
        """
        self.hung_s = now_s
        if len(self.waiting) > 1:
            self.all_streams.observe(2 * self.silent_s / self._bounds.factor)
        self._peers.stalls[StallVerdict.ENGINE] += 1

    def mark_stream_stalled(self) -> None:
        """One stream among others is. Several may be at one time: were the next to have longer, the last had no end."""
        self._peers.stalls[StallVerdict.STREAM] += 1

    def max_silence_s(self) -> float:
        """For how long it may say nothing to anybody."""
        bounds = self._bounds
        expected_s = max((vigil.expected_s for vigil in self.waiting), default=0.0)
        usual_s = max(self.all_streams.seconds, self._peers.median_silence_s())
        return min(self._most_s, max(bounds.engine_min_s, bounds.factor * max(usual_s, expected_s)))

    def max_silence_of_check_s(self) -> float:
        """The same as of the last look, where all who listen ask: reckoned once for all of them."""
        if self._bound_as_of_s != self.checked_s:
            self._bound_s, self._bound_as_of_s = self.max_silence_s(), self.checked_s
        return self._bound_s

    def max_stream_silence_s(self) -> float:
        """For how long one of several streams may have nothing."""
        bounds = self._bounds
        return min(self._most_s, max(bounds.stream_min_s, bounds.factor * self.single_streams.seconds))


class StreamWatch:
    """One request's wait for the next byte of its answer, looked at now and then."""

    __slots__ = (
        *("_alive_s", "_alone_s", "_asked_s", "_bounds", "_has_begun", "_has_head", "_holds_back", "_is_telling"),
        *("_looked_s", "_pulse", "_silent_s", "_was_paused", "expected_s"),
    )

    def __init__(
        self,
        pulse: EngineActivity,
        bounds: StallBounds,
        expected_s: float,
        now_s: float,
        *,
        is_telling: bool,
        holds_back: bool,
    ) -> None:
        """`expected_s`: until its first token, as predicted. `is_telling`: its first byte comes with that token.

        `holds_back`: its engine may tell nothing of what it makes, and be well: then its silence is no sign for long.
        """
        self._pulse = pulse
        self._bounds = bounds
        self._asked_s = self._looked_s = now_s
        self._silent_s = self._alone_s = self._alive_s = 0.0
        self._is_telling, self._holds_back = is_telling, holds_back
        self._has_begun = self._has_head = self._was_paused = False
        self.expected_s = expected_s
        """Nothing, once it has begun."""
        pulse.request_sent(now_s)
        pulse.waiting.add(self)

    def __repr__(self) -> str:
        return f"<Vigil, silent for {self._silent_s:.1f} s>"

    def data_received(self, now_s: float, *, has_begun: bool) -> None:
        """Something has come since the last look. `has_begun`: some of it was the client's.

        What comes first and is nobody's is a head, which servers send before their engine has done anything. What comes
        behind a pause may have lain there for as long.
        """
        self._pass(now_s)
        if not has_begun and not self._has_head:
            self._has_head = True
            return
        pulse = self._pulse
        if self._has_begun and self._holds_back:
            self._silent_s, self._alone_s = min(self._silent_s, pulse.max_between_checks_s), 0.0
        if not self._was_paused:
            # A whole answer is silent until its last token, however lively its engine is.
            pulse.output_received(now_s, self._silent_s, teaches=self._is_telling or self._has_begun)
            if len(pulse.of_engine) > 1:
                for other in pulse.of_engine - {pulse}:
                    other.seen_alive(now_s)
        if self._has_begun:
            pulse.single_streams.observe(self._alone_s)
        self._has_begun, self.expected_s = True, 0.0
        self._hears_from_now_on()

    def paused(self, now_s: float) -> None:
        """Its client does not read, so nothing can come: that says nothing of the engine, either way."""
        self._pass(now_s)
        self._hears_from_now_on()
        self._was_paused = True

    def check_silence(self, now_s: float) -> StallVerdict | None:
        """Nothing has come since the last look: whether that is too long by now."""
        pulse, bounds = self._pulse, self._bounds
        pulse.check(now_s)
        self._pass(now_s)
        self._alone_s = min(self._silent_s, pulse.alive_s - self._alive_s)
        if self._asked_s < pulse.hung_s:
            return StallVerdict.ENGINE
        if self._silent_s < bounds.engine_min_s or not (self._is_telling or self._has_begun):
            return None
        if self._has_begun and self._holds_back and self._silent_s < bounds.buffered_output_grace_s:
            return None
        if (
            pulse.silent_s >= bounds.engine_min_s
            and min(self._silent_s, pulse.silent_s) >= pulse.max_silence_of_check_s()
        ):
            pulse.mark_hung(now_s)
            return StallVerdict.ENGINE
        if self._has_begun and self._alone_s >= pulse.max_stream_silence_s():
            pulse.mark_stream_stalled()
            return StallVerdict.STREAM
        return None

    def finished(self, now_s: float) -> None:
        """The engine has answered to the end, perhaps all of it since the last look."""
        pulse = self._pulse
        if self._looked_s != self._asked_s or len(pulse.of_engine) > 1:
            self.data_received(now_s, has_begun=True)
        else:  # It waited for less than a look takes: that teaches nothing, but the engine is alive.
            pulse.hung_s, pulse.has_output = -inf, True
        pulse.waiting.discard(self)

    def stop(self) -> None:
        """The answer has ended, however it did."""
        self._pulse.waiting.discard(self)

    def _pass(self, now_s: float) -> None:
        passed_s, self._looked_s = min(now_s - self._looked_s, self._pulse.max_between_checks_s), now_s
        self._silent_s += passed_s

    def _hears_from_now_on(self) -> None:
        self._silent_s = self._alone_s = 0.0
        self._alive_s, self._was_paused = self._pulse.alive_s, False


class StallDetector:
    """All pulses of one gateway."""

    def __init__(self, bounds: StallBounds, most_s: float) -> None:
        """`most_s`: no silence is borne for longer, whatever was learned."""
        self._bounds = bounds
        self._most_s = most_s
        self._models: dict[str, ModelEngines] = {}
        self._engines: dict[str, set[EngineActivity]] = {}
        self.stalls: Counter[StallVerdict] = Counter()
        """How often an engine was given up, and how often one stream of several."""

    def watch(
        self,
        engine: str,
        model: str,
        expected_s: float,
        now_s: float,
        *,
        is_telling: bool = True,
        holds_back: bool = False,
    ) -> StreamWatch:
        """Somebody asks an engine, and will wait."""
        peers = self._models.get(model)
        if peers is None:
            peers = self._models[model] = ModelEngines(self.stalls)
        pulse = peers.pulses.get(engine)
        if pulse is None:
            for gone in peers.forget(now_s):
                gone.of_engine.discard(gone)
            self._engines = {name: pulses for name, pulses in self._engines.items() if pulses}
            of_engine = self._engines.setdefault(engine, set())
            pulse = peers.pulses[engine] = EngineActivity(self._bounds, self._most_s, peers, of_engine, now_s)
        return StreamWatch(pulse, self._bounds, expected_s, now_s, is_telling=is_telling, holds_back=holds_back)

    def engine_alive(self, engine: str, now_s: float) -> None:
        """An engine has answered somebody elsewhere."""
        for pulse in self._engines.get(engine, ()):
            pulse.seen_alive(now_s)

    def max_silence_s(self, engine: str, model: str) -> float | None:
        """For how long an engine may say nothing now; None where it was never asked."""
        peers = self._models.get(model)
        pulse = peers.pulses.get(engine) if peers is not None else None
        return None if pulse is None else pulse.max_silence_s()
