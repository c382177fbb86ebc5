"""Cases for promtool: each alert fires in its fault within the time it states, and none in a recorded calm hour.

`python -m tests.deploy.rule_cases FOLDER` writes them as promtool's test files; `make check-deploy` runs them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.record import REPLAY_S, read

RULES = Path(__file__).resolve().parents[2] / "deploy/prometheus/hearth-rules.yaml"


@dataclass(frozen=True, slots=True)
class Fault:
    """Series at one sample a minute, in promtool's notation. The fault begins at minute 60; the alert must not fire
    before it, and must fire `within_min` minutes after.
    """

    within_min: int
    series: dict[str, str]


def counter(before: float, after: float) -> str:
    """Return a counter that grows by so much a minute, before and after the fault begins."""
    return f"0+{before}x60 {60 * before + after}+{after}x180"


def gauge(before: float, after: float) -> str:
    """Return a gauge with a value before and one after the fault begins."""
    return f"{before}x59 {after}x180"


def slow_histogram(name: str, labels: str, good: float, bad: float) -> dict[str, str]:
    """Return a histogram of ten observations a minute that move from the bucket `good` to the bucket `bad`."""
    return {
        f'{name}_bucket{{{labels}, le="{good}"}}': counter(10, 0),
        f'{name}_bucket{{{labels}, le="{bad}"}}': counter(10, 10),
        f'{name}_bucket{{{labels}, le="+Inf"}}': counter(10, 10),
        f"{name}_count{{{labels}}}": counter(10, 10),
        f"{name}_sum{{{labels}}}": counter(10 * good, 10 * bad),
    }


TIER = 'tier="gold", pool="h100"'
INSTANCE = 'instance="gateway-1", job="hearth"'

FAULTS = {
    "HearthFindingFailing": Fault(
        2, {f'hearth_findings{{finding="engine_stalled", pool="h100", severity="failing", {INSTANCE}}}': gauge(0, 1)}
    ),
    "HearthFindingDegrading": Fault(
        12, {f'hearth_findings{{finding="kv_pressure", pool="h100", severity="degrading", {INSTANCE}}}': gauge(0, 1)}
    ),
    "HearthSLOBurnFast": Fault(
        20,
        {
            f"hearth_slo_requests_total{{{TIER}}}": counter(100, 100),
            f"hearth_slo_met_requests_total{{{TIER}}}": counter(100, 50),
        },
    ),
    "HearthSLOBurnSlow": Fault(
        75,
        {
            f"hearth_slo_requests_total{{{TIER}}}": counter(100, 100),
            f"hearth_slo_met_requests_total{{{TIER}}}": counter(100, 85),
        },
    ),
    "HearthQueueDominatesTTFT": Fault(
        15,
        slow_histogram("hearth_time_to_first_token_seconds", TIER, 0.25, 5.0)
        | {f"hearth_queue_wait_seconds_sum{{{TIER}}}": counter(0.1, 40)},
    ),
    "HearthKVTransferSlow": Fault(
        15, slow_histogram("hearth_kv_transfer_duration_seconds", 'connector="nixl"', 0.25, 5.0)
    ),
    "HearthKVTransfersFail": Fault(
        10, {'hearth_engine_nixl_failed_transfers_total{pool="h100", role="decode"}': counter(0, 2)}
    ),
    "HearthOverloadRejections": Fault(
        10,
        {
            'hearth_requests_total{model_name="m", status="200", reason=""}': counter(100, 80),
            'hearth_requests_total{model_name="m", status="429", reason="overloaded"}': counter(0, 20),
            'hearth_rejections_total{reason="overloaded"}': counter(0, 20),
        },
    ),
    "HearthTenantRejected": Fault(
        20,
        {
            'hearth_tenant_requests_total{tenant="acme"}': counter(30, 30),
            'hearth_tenant_rejections_total{tenant="acme", reason="rate_limited_tokens"}': counter(0, 25),
        },
    ),
    "HearthBudgetNearlySpent": Fault(6, {'hearth_limit_used_ratio{tenant="acme", limit="budget"}': gauge(0.5, 0.95)}),
    "HearthNoPodReady": Fault(2, {f'hearth_upstreams{{state="ready", {INSTANCE}}}': gauge(4, 0)}),
    "HearthPodSick": Fault(6, {'hearth_upstream_state{upstream="http://a:1", state="open_circuit"}': gauge(0, 1)}),
    "HearthPodFails": Fault(
        10,
        {
            'hearth_upstream_attempts_total{upstream="http://a:1", result="ok"}': counter(30, 20),
            'hearth_upstream_attempts_total{upstream="http://a:1", result="connection_reset"}': counter(0, 10),
        },
    ),
    "HearthPodSlow": Fault(
        20,
        {
            f'hearth_upstream_time_to_first_token_seconds_{kind}{{upstream="http://{pod}:1"}}': counter(*values)
            for pod in "abcd"
            for kind, values in (("count", (60, 60)), ("sum", (12, 90 if pod == "a" else 12)))
        },
    ),
    "HearthPodsFewerThanKnown": Fault(
        6,
        {
            f'hearth_upstreams{{state="ready", {INSTANCE}}}': gauge(10, 6),
            f'hearth_upstreams{{state="open_circuit", {INSTANCE}}}': gauge(0, 4),
        },
    ),
    "HearthSourceFails": Fault(6, {'hearth_discovery_source_up{source="dns:pods"}': gauge(1, 0)}),
    "HearthWarning": Fault(11, {'hearth_warnings{event="source_empty", subject="dns:pods"}': gauge(0, 1)}),
    "HearthCachePredictionDrifts": Fault(
        16, {'hearth_upstream_prefix_prediction_drifting{upstream="http://a:1"}': gauge(0, 1)}
    ),
    "HearthCascadeDrift": Fault(2, {'hearth_cascade_drift_alarm{cascade="auto"}': gauge(0, 1)}),
    "HearthCascadeGuaranteeLost": Fault(6, {'hearth_cascade_guarantee_active{cascade="auto"}': gauge(1, 0)}),
    "HearthDown": Fault(2, {f"up{{{INSTANCE}}}": gauge(1, 0)}),
    "HearthCPUHigh": Fault(15, {f'process_cpu_seconds_total{{process="worker-1", {INSTANCE}}}': counter(20, 57)}),
    "HearthCallbackErrors": Fault(2, {'hearth_callback_errors_total{loop="queue"}': counter(0, 1)}),
    "HearthReloadFailed": Fault(2, {f"hearth_config_last_reload_successful{{{INSTANCE}}}": gauge(1, 0)}),
    "HearthIndexProcessLost": Fault(3, {f"hearth_kv_index_connected{{{INSTANCE}}}": gauge(1, 0)}),
    "HearthReplicaSyncLosesUpdates": Fault(
        20, {f'hearth_replica_sync_updates_lost_total{{reason="invalid", {INSTANCE}}}': counter(0, 5)}
    ),
    "HearthRedisLost": Fault(3, {f"hearth_redis_connected{{{INSTANCE}}}": gauge(1, 0)}),
    "HearthRedisLate": Fault(6, {f"hearth_redis_staleness_seconds{{{INSTANCE}}}": gauge(0.01, 3)}),
    "HearthLimitsNotCoordinated": Fault(6, {f"hearth_limit_coordinator_connected{{{INSTANCE}}}": gauge(1, 0)}),
    "HearthLogLinesDropped": Fault(2, {f'hearth_log_lines_dropped_total{{log="usage", {INSTANCE}}}': counter(0, 3)}),
}
"""One for each alert."""

OVERLOAD_ALERTS = ("HearthSLOBurnFast", "HearthOverloadRejections", "HearthTenantRejected")
"""Those that a recorded overload must raise within its hour."""


def firing(alert: str, at_min: float, *, is_firing: bool) -> dict[str, Any]:
    """Return the expectation that an alert fires at a minute, or does not."""
    expression = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0 or vector(0)'
    return {
        "expr": expression,
        "eval_time": f"{round(at_min * 60)}s",
        "exp_samples": [{"labels": "{}", "value": 1 if is_firing else 0}],
    }


def suites() -> dict[str, dict[str, Any]]:
    """Return promtool's test files by name."""
    faults = [
        {
            "name": alert,
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in fault.series.items()],
            "promql_expr_test": [
                firing(alert, 59, is_firing=False),
                firing(alert, 60 + fault.within_min, is_firing=True),
            ],
        }
        for alert, fault in FAULTS.items()
    ]
    replay = f"{REPLAY_S}s"
    overload = {
        "name": "recorded overload",
        "interval": replay,
        "input_series": read("overload"),
        "promql_expr_test": [firing(alert, 60, is_firing=True) for alert in OVERLOAD_ALERTS],
    }
    calm = {
        "name": "recorded calm hour",
        "interval": replay,
        "input_series": read("calm"),
        "promql_expr_test": [
            {
                "expr": 'count(ALERTS{alertstate="firing"}) or vector(0)',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": 0}],
            }
            for minute in range(1, 61)
        ],
    }
    return {
        name: {"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": tests}
        for name, tests in (("faults", faults), ("overload", [overload]), ("calm", [calm]))
    }


def main() -> None:
    """Write the files into the named folder."""
    folder = Path(sys.argv[1])
    for name, suite in suites().items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(suite, width=10_000), encoding="utf-8")


if __name__ == "__main__":
    main()
