"""Predictions judged pod by pod: sums, a share, an alarm that begins and ends once."""

from prometheus_client import CollectorRegistry, generate_latest

from gateway.observe.metrics.calibration import MIN_RESPONSES, CalibrationCollector
from tests.gateway.samples import an_attempt

POD = "http://a:1"


class Scene:
    def __init__(self) -> None:
        self.pods = {POD, "http://b:1"}
        self.stated: list[tuple[str, str, str]] = []
        self.calibration = CalibrationCollector(
            lambda: self.pods, lambda level, event, *, state, **_: self.stated.append((level, event, state))
        )

    def judge(self, predicted: int, real: int | None, times: int = 1, engine: str = POD) -> None:
        for _ in range(times):
            attempt = an_attempt(
                predicted_cached_input_tokens=predicted, actual_cached_input_tokens=real, engine=engine
            )
            self.calibration.add(attempt)

    def page(self) -> str:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self.calibration)
        return generate_latest(registry).decode()


def test_sums_are_by_pod_and_differences_do_not_cancel() -> None:
    """Ranks of one pod count together; what was not told is not judged; who is gone has no series."""
    scene = Scene()
    scene.judge(100, 80)
    scene.judge(100, 120, engine=f"{POD}#1")
    scene.judge(100, None)
    scene.judge(7, 7, engine="http://b:1")
    page = scene.page()
    assert f'hearth_upstream_predicted_cached_tokens_total{{upstream="{POD}"}} 200.0' in page
    assert f'hearth_upstream_actual_cached_tokens_total{{upstream="{POD}"}} 200.0' in page
    assert f'hearth_upstream_cached_tokens_prediction_error_total{{upstream="{POD}"}} 40.0' in page
    assert f'hearth_upstream_prefix_prediction_drifting{{upstream="{POD}"}} 0.0' in page
    scene.pods.remove("http://b:1")
    assert "http://b:1" not in scene.page()


def test_drift_is_reported_once_and_so_is_its_end() -> None:
    """A few wrong answers are learning; many are an alarm, until they are right again."""
    scene = Scene()
    scene.judge(1000, 0, times=MIN_RESPONSES // 2)
    assert scene.stated == []
    scene.judge(1000, 0, times=2 * MIN_RESPONSES)
    assert scene.stated == [("warning", "prefix_prediction_drift", "firing")]
    assert f'hearth_upstream_prefix_prediction_drifting{{upstream="{POD}"}} 1.0' in scene.page()
    scene.judge(1000, 1000, times=400)
    assert scene.stated[1:] == [("info", "prefix_prediction_drift", "resolved")]
