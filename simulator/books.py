"""What a simulated pod counts about finished requests, as in vLLM's histograms. Independent of the metrics format."""

from __future__ import annotations

from simulator.histogram import Histogram
from simulator.sequence import Milestone, Sequence
from simulator.step_book import GAP_S, StepBook

_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))

HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": _FIRST_TOKEN_S,
    "request_time_per_output_token_seconds": GAP_S,
    "e2e_request_latency_seconds": _REQUEST_S,
    "request_queue_time_seconds": _REQUEST_S,
    "request_inference_time_seconds": _REQUEST_S,
    "request_prefill_time_seconds": _REQUEST_S,
    "request_decode_time_seconds": _REQUEST_S,
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "request_params_max_tokens": _TOKENS,
    "request_prefill_kv_computed_tokens": _TOKENS,
}
"""vLLM's names, without their prefix, and its bucket limits."""

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Books:
    """One engine's. Times come in engine seconds and are kept in real ones."""

    def __init__(self, time_scale: float) -> None:
        self._time_scale = time_scale
        self.histograms = {name: Histogram(limits) for name, limits in HISTOGRAMS.items()}
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.steps = StepBook(time_scale)
        """Written by the engine."""

    def enter(self, sequence: Sequence, submitted_at: float, first: Milestone | None, end: Milestone) -> None:
        """A sequence has ended by itself; vLLM keeps no books on aborted ones."""
        self.finished[end.reason] += 1
        admitted_at = submitted_at if end.admitted_at is None else end.admitted_at
        first_at = end.at if first is None else first.at
        self._time("request_queue_time_seconds", admitted_at - submitted_at)
        self._time("request_prefill_time_seconds", first_at - admitted_at)
        self._time("request_decode_time_seconds", end.at - first_at)
        self._time("request_inference_time_seconds", end.at - admitted_at)
        self._time("e2e_request_latency_seconds", end.at - submitted_at)
        if first is not None:
            self._time("time_to_first_token_seconds", first_at - submitted_at)
        if end.output_tokens > 1:
            self._time("request_time_per_output_token_seconds", (end.at - first_at) / (end.output_tokens - 1))
        self.histograms["request_prompt_tokens"].observe(sequence.prompt_tokens)
        self.histograms["request_generation_tokens"].observe(end.output_tokens)
        self.histograms["request_params_max_tokens"].observe(sequence.output_tokens)
        self.histograms["request_prefill_kv_computed_tokens"].observe(sequence.prompt_tokens - end.cached_tokens)

    def _time(self, name: str, engine_s: float) -> None:
        self.histograms[name].observe(engine_s / self._time_scale)
