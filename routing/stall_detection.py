"""Whether a silent engine is slow or hung: judged by its earlier silences.

Every byte of every response is a sign of life. The longest silence that ended with one is learned for each engine
and model, and decays while requests wait for it. A silence is too long at a multiple of that length; during the
prefill of a waiting prompt, at the same multiple of the predicted prefill time. Only observed time counts: not
while no request was open, not while this process was held up, and not while the client does not read.

Engine silence is measured by the wait of the stream that receives the next byte. A stream's silence before that
counts against that stream only: the engine was alive. So a stream that stalls neither teaches that its engine is slow
nor is hidden by it, however few other streams there are.

Other signs of life are responses that begin and end between two checks, responses of another model that the engine
serves, and reports of other gateways. Independent of connections; time is an argument.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from statistics import median_low

ENGINE_TTL_S = 3600.0
"""Activity of an engine without requests for this long is dropped."""


@dataclass(frozen=True, slots=True)
class StallBounds:
    """When silence is too long. Seconds, except `factor`."""

    factor: float = 4.0
    """A silence may be this many times as long as the longest recent one."""
    engine_min_s: float = 10.0
    """No engine that falls silent altogether is given up sooner."""
    stream_min_s: float = 15.0
    """Nor is one stream while others of its engine flow: an engine may put one aside for lack of room."""
    buffered_output_grace_s: float = 30.0
    """How long an engine may buffer output: tool calls until they are complete, reasoning that is not shown."""
    initial_s: float = 10.0
    """Prior of the longest silence of an unknown engine; that of single streams is 0."""
    half_life_s: float = 120.0
    """Of listening, after which a silence counts for half as long."""

    @property
    def max_between_checks_s(self) -> float:
        """A longer gap between two checks is not counted: this process was held up."""
        return self.engine_min_s / 4


class StallVerdict(Enum):
    """What a silence has turned out to be."""

    ENGINE = auto()
    """The engine has sent nothing on any stream."""
    STREAM = auto()
    """Others have tokens; this one has none."""


class DecayingMax:
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
        """Return the low median of the engines' longest silences (decayed), in seconds."""
        return median_low(pulse.all_streams.seconds for pulse in self.pulses.values())

    def forget(self, now_s: float) -> list[EngineActivity]:
        """Drop engines without requests for `ENGINE_TTL_S`; return them."""
        gone = [name for name, pulse in self.pulses.items() if now_s - pulse.checked_s > ENGINE_TTL_S]
        return [self.pulses.pop(name) for name in gone]


class EngineActivity:
    """One engine's, serving one model."""

    __slots__ = (
        *("_bound_as_of_s", "_bound_s", "_bounds", "_broken_s", "_max_s", "_peers", "_quiet_s"),
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
        self, bounds: StallBounds, max_s: float, peers: ModelEngines, of_engine: set[EngineActivity], now_s: float
    ) -> None:
        """`of_engine`: the pulses of the same engine, this one included, whichever model they are of."""
        self.of_engine = of_engine
        of_engine.add(self)
        self._bounds = bounds
        self._max_s = max_s
        self._peers = peers
        self._bound_s, self._bound_as_of_s = 0.0, -inf
        self._quiet_s = self._broken_s = 0.0
        self.max_between_checks_s = bounds.max_between_checks_s
        self.checked_s = now_s
        self.has_output = False
        """Whether any stream received output since the last check."""
        self.alive_s = 0.0
        """Observed time up to its last byte before this look, without the silences that it broke."""
        self.hung_s = -inf
        """When the engine was last judged hung; requests sent before are judged with it. -inf since its last output."""
        self.all_streams = DecayingMax(bounds.initial_s)
        """Silences of all its streams at once."""
        self.single_streams = DecayingMax(0.0)
        """Silences of single ones while it was alive."""
        self.waiting: set[StreamWatch] = set()
        """Those whose answers have not ended."""

    def __repr__(self) -> str:
        return f"<EngineActivity silent for {self.silent_s:.1f} s, {len(self.waiting)} listening>"

    @property
    def silent_s(self) -> float:
        """Observed seconds since the last byte on any stream."""
        return 0.0 if self.has_output else self._quiet_s

    def request_sent(self, now_s: float) -> None:
        """Record a request. If none was open, the engine's silence starts now."""
        if now_s - self.checked_s > self.max_between_checks_s:
            self.check(now_s)
            self._quiet_s = 0.0

    def check(self, now_s: float) -> None:
        """Advance the observed time while requests are open."""
        if now_s <= self.checked_s:
            return
        self._settle()
        passed_s, self.checked_s = min(now_s - self.checked_s, self.max_between_checks_s), now_s
        self._quiet_s += passed_s

    def output_received(self, now_s: float, silent_s: float, *, teaches: bool = True) -> None:
        """Record output on a stream that was silent for `silent_s`.

        With `teaches` False it is only a sign of life and does not change the longest silence.
        """
        self.check(now_s)
        self.hung_s, self.has_output = -inf, True
        broken_s = min(silent_s, self._quiet_s)
        if broken_s <= self._broken_s:  # A stream read earlier in this check has waited as long.
            return
        if teaches:
            for silence in (self.all_streams, self.single_streams):
                silence.decay(broken_s - self._broken_s, self._bounds.half_life_s)
            self.all_streams.observe(broken_s)
        self._broken_s = broken_s

    def sign_of_life(self, now_s: float) -> None:
        """Record a sign of life on a stream outside this record."""
        if self.waiting:
            self.output_received(now_s, inf, teaches=False)

    def _settle(self) -> None:
        """Apply the output of the last check only now: other streams may have received theirs a moment later."""
        if self.has_output:
            self.alive_s += self._quiet_s - max(0.0, self._broken_s - self.max_between_checks_s)
            self._quiet_s = self._broken_s = 0.0
            self.has_output = False

    def mark_hung(self, now_s: float) -> None:
        """Judge the engine hung. In case it is not, the next silence of several streams may be twice as long.

        A single open stream may itself be stalled, and does not extend the next silence.
        """
        self.hung_s = now_s
        if len(self.waiting) > 1:
            self.all_streams.observe(2 * self.silent_s / self._bounds.factor)
        self._peers.stalls[StallVerdict.ENGINE] += 1

    def mark_stream_stalled(self) -> None:
        """One stream among others is. Several may be at one time: were the next to have longer, the last had no end."""
        self._peers.stalls[StallVerdict.STREAM] += 1

    def max_silence_s(self) -> float:
        """Return for how many seconds the engine may be silent on all streams."""
        bounds = self._bounds
        expected_s = max((stall_watch.expected_s for stall_watch in self.waiting), default=0.0)
        typical_s = max(self.all_streams.seconds, self._peers.median_silence_s())
        return min(self._max_s, max(bounds.engine_min_s, bounds.factor * max(typical_s, expected_s)))

    def max_silence_of_check_s(self) -> float:
        """Return `max_silence_s` as of the last check, computed once for all streams."""
        if self._bound_as_of_s != self.checked_s:
            self._bound_s, self._bound_as_of_s = self.max_silence_s(), self.checked_s
        return self._bound_s

    def max_stream_silence_s(self) -> float:
        """For how long one of several streams may have nothing."""
        bounds = self._bounds
        return min(self._max_s, max(bounds.stream_min_s, bounds.factor * self.single_streams.seconds))


class StreamWatch:
    """One request's wait for the next byte of its answer, looked at now and then."""

    __slots__ = (
        *("_alive_s", "_alone_s", "_sent_s", "_bounds", "_has_started", "_has_head", "_holds_back", "_streams_tokens"),
        *("_looked_s", "_pulse", "_silent_s", "_was_paused", "expected_s"),
    )

    def __init__(
        self,
        pulse: EngineActivity,
        bounds: StallBounds,
        expected_s: float,
        now_s: float,
        *,
        streams_tokens: bool,
        holds_back: bool,
    ) -> None:
        """`expected_s`: until its first token, as predicted. `streams_tokens`: its first byte comes with that token.

        `holds_back`: the engine may buffer its output, so that its silence is a sign only after a grace period.
        """
        self._pulse = pulse
        self._bounds = bounds
        self._sent_s = self._looked_s = now_s
        self._silent_s = self._alone_s = self._alive_s = 0.0
        self._streams_tokens, self._holds_back = streams_tokens, holds_back
        self._has_started = self._has_head = self._was_paused = False
        self.expected_s = expected_s
        """Nothing, once it has begun."""
        pulse.request_sent(now_s)
        pulse.waiting.add(self)

    def __repr__(self) -> str:
        return f"<StreamWatch silent for {self._silent_s:.1f} s>"

    def data_received(self, now_s: float, *, has_started: bool) -> None:
        """Record bytes received since the last check. `has_started`: some of them belong to the response's body.

        A first read without body bytes is the head, which servers send before their engine has started. Bytes read
        after a pause may have been buffered for as long.
        """
        self._pass(now_s)
        if not has_started and not self._has_head:
            self._has_head = True
            return
        pulse = self._pulse
        if self._has_started and self._holds_back:
            self._silent_s, self._alone_s = min(self._silent_s, pulse.max_between_checks_s), 0.0
        if not self._was_paused:
            # A whole answer is silent until its last token, however lively its engine is.
            pulse.output_received(now_s, self._silent_s, teaches=self._streams_tokens or self._has_started)
            if len(pulse.of_engine) > 1:
                for other in pulse.of_engine - {pulse}:
                    other.sign_of_life(now_s)
        if self._has_started:
            pulse.single_streams.observe(self._alone_s)
        self._has_started, self.expected_s = True, 0.0
        self._restart()

    def paused(self, now_s: float) -> None:
        """Its client does not read, so nothing can come: that says nothing of the engine, either way."""
        self._pass(now_s)
        self._restart()
        self._was_paused = True

    def check_silence(self, now_s: float) -> StallVerdict | None:
        """Nothing has come since the last look: whether that is too long by now."""
        pulse, bounds = self._pulse, self._bounds
        pulse.check(now_s)
        self._pass(now_s)
        self._alone_s = min(self._silent_s, pulse.alive_s - self._alive_s)
        if self._sent_s < pulse.hung_s:
            return StallVerdict.ENGINE
        if self._silent_s < bounds.engine_min_s or not (self._streams_tokens or self._has_started):
            return None
        if self._has_started and self._holds_back and self._silent_s < bounds.buffered_output_grace_s:
            return None
        if (
            pulse.silent_s >= bounds.engine_min_s
            and min(self._silent_s, pulse.silent_s) >= pulse.max_silence_of_check_s()
        ):
            pulse.mark_hung(now_s)
            return StallVerdict.ENGINE
        if self._has_started and self._alone_s >= pulse.max_stream_silence_s():
            pulse.mark_stream_stalled()
            return StallVerdict.STREAM
        return None

    def finished(self, now_s: float) -> None:
        """The engine has answered to the end, perhaps all of it since the last look."""
        pulse = self._pulse
        if self._looked_s != self._sent_s or len(pulse.of_engine) > 1:
            self.data_received(now_s, has_started=True)
        else:  # It waited for less than a look takes: that teaches nothing, but the engine is alive.
            pulse.hung_s, pulse.has_output = -inf, True
        pulse.waiting.discard(self)

    def stop(self) -> None:
        """The answer has ended, however it did."""
        self._pulse.waiting.discard(self)

    def _pass(self, now_s: float) -> None:
        passed_s, self._looked_s = min(now_s - self._looked_s, self._pulse.max_between_checks_s), now_s
        self._silent_s += passed_s

    def _restart(self) -> None:
        self._silent_s = self._alone_s = 0.0
        self._alive_s, self._was_paused = self._pulse.alive_s, False


class StallDetector:
    """All pulses of one gateway."""

    def __init__(self, bounds: StallBounds, max_s: float) -> None:
        """`max_s`: no silence is borne for longer, whatever was learned."""
        self._bounds = bounds
        self._max_s = max_s
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
        streams_tokens: bool = True,
        holds_back: bool = False,
    ) -> StreamWatch:
        """Start watching a request that was sent to an engine."""
        peers = self._models.get(model)
        if peers is None:
            peers = self._models[model] = ModelEngines(self.stalls)
        pulse = peers.pulses.get(engine)
        if pulse is None:
            for gone in peers.forget(now_s):
                gone.of_engine.discard(gone)
            self._engines = {name: pulses for name, pulses in self._engines.items() if pulses}
            of_engine = self._engines.setdefault(engine, set())
            pulse = peers.pulses[engine] = EngineActivity(self._bounds, self._max_s, peers, of_engine, now_s)
        return StreamWatch(pulse, self._bounds, expected_s, now_s, streams_tokens=streams_tokens, holds_back=holds_back)

    def engine_alive(self, engine: str, now_s: float) -> None:
        """Record that another gateway received output of an engine."""
        for pulse in self._engines.get(engine, ()):
            pulse.sign_of_life(now_s)

    def max_silence_s(self, engine: str, model: str) -> float | None:
        """For how long an engine may say nothing now; None where it was never asked."""
        peers = self._models.get(model)
        pulse = peers.pulses.get(engine) if peers is not None else None
        return None if pulse is None else pulse.max_silence_s()
