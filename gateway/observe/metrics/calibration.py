"""Prediction error of cached tokens per pod: sums for a dashboard, and an alarm when predictions drift.

The prediction of the prefix-cache index, approximate or precise, is compared with what engines report as reused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.runtime.event_log import LogFunction
from gateway.runtime.metric_families import Family
from routing.decision.placement import AttemptReceipt

AVERAGED_RESPONSES = 200.0
"""Responses over which the error is averaged (exponentially)."""

MIN_RESPONSES = 50
"""Responses of a pod before it can raise an alarm: a new pod is still being learned."""

ALARM_ERROR = 0.5
"""Share of cached tokens predicted wrongly at which the alarm starts."""

CLEAR_ERROR = 0.35
"""Share below which it ends."""

MAX_PODS = 4096


@dataclass(slots=True)
class PodPredictionError:
    """Prediction error of one pod."""

    predicted_tokens: int = 0
    actual_tokens: int = 0
    error_tokens: int = 0
    """Sum of differences, whichever way."""
    response_weight: float = 0.0
    recent_error_tokens: float = 0.0
    recent_cached_tokens: float = 0.0
    is_alarming: bool = False

    @property
    def error(self) -> float:
        """Share of cached tokens predicted wrongly, recent responses weighing most."""
        return self.recent_error_tokens / self.recent_cached_tokens if self.recent_cached_tokens else 0.0

    def add(self, predicted: int, real: int) -> bool:
        """Add a response. Returns whether the alarm started or ended with it."""
        self.predicted_tokens += predicted
        self.actual_tokens += real
        self.error_tokens += abs(predicted - real)
        kept = 1 - 1 / AVERAGED_RESPONSES
        self.response_weight = self.response_weight * kept + 1
        self.recent_error_tokens = self.recent_error_tokens * kept + abs(predicted - real)
        self.recent_cached_tokens = self.recent_cached_tokens * kept + max(predicted, real)
        was_alarming = self.is_alarming
        bound = CLEAR_ERROR if was_alarming else ALARM_ERROR
        self.is_alarming = self.response_weight >= MIN_RESPONSES and self.error > bound
        return self.is_alarming is not was_alarming


class CalibrationCollector(Collector):
    """One per gateway. `pods` returns the URLs of current pods: those that left have no series."""

    def __init__(self, pods: Callable[[], Collection[str]], log_event: LogFunction) -> None:
        self._pods = pods
        self._log_event = log_event
        self._judged: dict[str, PodPredictionError] = {}

    def add(self, attempt: AttemptReceipt) -> None:
        """Add an attempt, if its engine reported cached tokens."""
        if attempt.actual_cached_input_tokens is None:
            return
        url = attempt.engine.partition("#")[0]
        pod = self._judged.get(url)
        if pod is None:
            if len(self._judged) >= MAX_PODS:
                self._forget_gone()
            pod = self._judged[url] = PodPredictionError()
        if pod.add(attempt.predicted_cached_input_tokens, attempt.actual_cached_input_tokens):
            level, state = ("warning", "firing") if pod.is_alarming else ("info", "resolved")
            error_ratio = round(pod.error, 3)
            self._log_event(level, "prefix_prediction_drift", upstream=url, state=state, error_ratio=error_ratio)

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        self._forget_gone()
        sums: tuple[tuple[str, str, Callable[[PodPredictionError], int]], ...] = (
            (
                "hearth_upstream_predicted_cached_tokens",
                "Cached prompt tokens that routing predicted on the pod.",
                lambda pod: pod.predicted_tokens,
            ),
            (
                "hearth_upstream_actual_cached_tokens",
                "Cached prompt tokens that the pod's engines reported.",
                lambda pod: pod.actual_tokens,
            ),
            (
                "hearth_upstream_cached_tokens_prediction_error",
                "Absolute differences of predicted and reported cached tokens of the pod, summed.",
                lambda pod: pod.error_tokens,
            ),
        )
        for name, words, sum_of in sums:
            counter = CounterMetricFamily(name, words, labels=("upstream",))
            for url, pod in self._judged.items():
                counter.add_metric((url,), sum_of(pod))
            yield counter
        error = GaugeMetricFamily(
            "hearth_upstream_prefix_prediction_error_ratio",
            "Recent share of cached tokens predicted wrongly.",
            labels=("upstream",),
        )
        drift = GaugeMetricFamily(
            "hearth_upstream_prefix_prediction_drifting",
            "1 while hearth_upstream_prefix_prediction_error_ratio is too high.",
            labels=("upstream",),
        )
        for url, pod in self._judged.items():
            error.add_metric((url,), pod.error)
            drift.add_metric((url,), float(pod.is_alarming))
        yield from (error, drift)

    def _forget_gone(self) -> None:
        there = self._pods()
        for url in [url for url in self._judged if url not in there]:
            del self._judged[url]
