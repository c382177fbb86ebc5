"""The dashboards of deploy/grafana: `python -m tests.deploy.dashboards` writes them, a test holds them against this list.

Each is rows of panels; a panel is a title, its queries with their legends, and a unit. The classic model is written,
with the data source as a variable, so that any Grafana imports it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "deploy/grafana"

WINDOW = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph; `kind` may be `stat` or `table`. `queries` are pairs of an expression and a legend."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    help: str = ""
    kind: str = "timeseries"
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Rows of panels; the panels of a row share its width."""

    uid: str
    title: str
    rows: tuple[tuple[Panel, ...], ...]
    variables: tuple[tuple[str, str], ...] = ()
    """Name of a variable, and the query of its values."""


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Return the sum of rates of a counter."""
    return f"sum{f' by ({by}) ' if by else ''}(rate({metric}{where}[{WINDOW}]))"


def share(part: str, total: str, by: str = "", where: str = "") -> str:
    """Return a ratio of two counters."""
    return f"{rate(part, by, where)} / ({rate(total, by, where)} > 0)"


def quantile(at: float, metric: str, by: str = "", where: str = "") -> str:
    """Return a quantile of a histogram."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({at}, sum by ({labels}) (rate({metric}_bucket{where}[{WINDOW}])))"


def mean(metric: str, by: str = "", where: str = "") -> str:
    """Return the mean of a summary or histogram."""
    return share(f"{metric}_sum", f"{metric}_count", by, where)


TIER = '{tier=~"$tier", pool=~"$pool"}'
FAILED = '{result!~"ok|escalated"}'
TENANT = '{tenant=~"$tenant"}'
TTFT = "hearth_time_to_first_token_seconds"
TIER_POOL = "{{tier}} on {{pool}}"

OVERVIEW = Dashboard(
    "hearth-overview",
    "Hearth: overview",
    (
        (
            Panel("Ready pods", "none", (('sum(hearth_upstreams{state="ready"})', "ready"),), kind="stat"),
            Panel("Requests a second", "reqps", ((rate("hearth_requests_total"), "requests"),), kind="stat"),
            Panel("Objectives met", "percentunit", ((share("hearth_slo_met_requests_total", "hearth_slo_requests_total"), "met"),), kind="stat"),
            Panel("TTFT p95", "s", ((quantile(0.95, TTFT), "p95"),), kind="stat"),
            Panel("Cached prompt tokens", "percentunit", ((share("hearth_cached_input_tokens_total", "hearth_input_tokens_total"), "cached"),), kind="stat"),
            Panel("Spend an hour", "none", (("sum(increase(hearth_cost_total[1h]))", "spend"),), kind="stat"),
        ),
        (
            Panel("Requests by status", "reqps", ((rate("hearth_requests_total", "status"), "{{status}}"),), stacked=True),
            Panel("Rejections by reason", "reqps", ((rate("hearth_rejections_total", "reason"), "{{reason}}"),), "Why clients receive 429 and 503: docs/reasons.md", stacked=True),
        ),
        (
            Panel("TTFT", "s", tuple((quantile(at, TTFT), f"p{round(100 * at)}") for at in (0.5, 0.95, 0.99))),
            Panel("Where TTFT goes", "s", (
                (f"{rate('hearth_queue_wait_seconds_sum')} / ({rate(TTFT + '_count')} > 0)", "gateway queue"),
                (mean("hearth_engine_queue_seconds"), "engine queue"),
                (mean("hearth_engine_prefill_seconds"), "prefill"),
            ), "Means. The rest of TTFT is failed attempts and network.", stacked=True),
            Panel("Time per output token", "s", tuple((quantile(at, "hearth_time_per_output_token_seconds"), f"p{round(100 * at)}") for at in (0.5, 0.95, 0.99))),
        ),
        (
            Panel("Pods by state", "none", (("sum by (state) (hearth_upstreams)", "{{state}}"),), stacked=True),
            Panel("Pods that are not well", "none", (('max by (upstream, state) (hearth_upstream_state{state=~"open_circuit|suspect|unready"}) == 1', "{{upstream}} {{state}}"),), kind="table"),
            Panel("Failed attempts by pod", "reqps", ((f"topk(10, {rate('hearth_upstream_attempts_total', 'upstream, result', FAILED)})", "{{upstream}} {{result}}"),)),
        ),
        (
            Panel("TTFT by pod, slowest", "s", ((f"topk(10, {mean('hearth_upstream_time_to_first_token_seconds', 'upstream')})", "{{upstream}}"),), "From the choice of the engine to its first token."),
            Panel("Streams resumed, and not", "reqps", ((rate("hearth_stream_resumes_total"), "resumed"), (rate("hearth_stream_resume_failures_total", "reason"), "{{reason}}"))),
            Panel("Warnings", "none", (("max by (event, subject) (hearth_warnings) == 1", "{{event}} {{subject}}"),), kind="table"),
        ),
    ),
)  # fmt: skip

OBJECTIVES = Dashboard(
    "hearth-objectives",
    "Hearth: objectives by tier and tenant",
    (
        (
            Panel("Objectives met by tier", "percentunit", ((share("hearth_slo_met_requests_total", "hearth_slo_requests_total", "tier, pool", TIER), TIER_POOL),)),
            Panel("Error budget spent of 30 days, an hour's rate", "percentunit", (("hearth:slo_missed:ratio_rate1h" + TIER + " / 0.01 / 720", TIER_POOL),), "1 h of misses at this rate, as a share of the budget of 1 %."),
            Panel("Goodput", "none", ((rate("hearth_goodput_tokens_total", "tier, pool", TIER), TIER_POOL),), "Output tokens a second of requests that met their objective."),
        ),
        (
            Panel("TTFT p99", "s", ((quantile(0.99, TTFT, "tier, pool", TIER), TIER_POOL),)),
            Panel("TPOT p99", "s", ((quantile(0.99, "hearth_time_per_output_token_seconds", "tier, pool", TIER), TIER_POOL),)),
            Panel("Wait in the queue, p99", "s", ((quantile(0.99, "hearth_queue_wait_seconds", "tier, pool", TIER), TIER_POOL),)),
        ),
        (
            Panel("Queued", "none", (("sum by (tier, pool) (hearth_queued_requests" + TIER + ")", TIER_POOL),)),
            Panel("Time to drain the queue", "s", (("max by (tier, pool) (hearth_queue_drain_seconds" + TIER + ")", TIER_POOL),)),
            Panel("Rejections by tier and reason", "reqps", ((rate("hearth_tier_rejections_total", "tier, reason", TIER), "{{tier}} {{reason}}"),), stacked=True),
        ),
        (
            Panel("Objectives met by tenant, worst", "percentunit", ((f"bottomk(15, {share('hearth_tenant_slo_met_requests_total', 'hearth_tenant_slo_requests_total', 'tenant', TENANT)})", "{{tenant}}"),)),
            Panel("Rejections by tenant and reason", "reqps", ((f"topk(15, {rate('hearth_tenant_rejections_total', 'tenant, reason', TENANT)})", "{{tenant}} {{reason}}"),), "Who is rejected, and why."),
            Panel("TTFT by tenant, slowest", "s", ((f"topk(15, {mean('hearth_tenant_time_to_first_token_seconds', 'tenant', TENANT)})", "{{tenant}}"),)),
        ),
    ),
    (("tier", "label_values(hearth_slo_requests_total, tier)"), ("pool", "label_values(hearth_slo_requests_total, pool)"), ("tenant", "label_values(hearth_tenant_requests_total, tenant)")),
)  # fmt: skip

CACHE = Dashboard(
    "hearth-cache",
    "Hearth: prefix cache",
    (
        (
            Panel("Cached prompt tokens by model", "percentunit", ((share("hearth_cached_input_tokens_total", "hearth_input_tokens_total", "model_name"), "{{model_name}}"),)),
            Panel("Cached prompt tokens by tenant", "percentunit", ((f"topk(20, {share('hearth_tenant_cached_input_tokens_total', 'hearth_tenant_input_tokens_total', 'tenant', TENANT)})", "{{tenant}}"),)),
        ),
        (
            Panel("Predicted and reported", "none", ((rate("hearth_predicted_cached_tokens_total"), "predicted"), (rate("hearth_actual_cached_tokens_total"), "reported"), (rate("hearth_cached_tokens_prediction_error_total"), "error"))),
            Panel("Share predicted wrongly, by pod", "percentunit", (("topk(10, max by (upstream) (hearth_upstream_prefix_prediction_error_ratio))", "{{upstream}}"),)),
            Panel("Error of predicted TTFT, p95", "s", ((quantile(0.95, "hearth_ttft_prediction_error_seconds", "model_name"), "{{model_name}}"),)),
        ),
        (
            Panel("Prompt tokens by source", "none", ((rate("hearth_engine_prompt_tokens_total", "source"), "{{source}}"),), "As engines report them: computed, own cache, transfer.", stacked=True),
            Panel("Blocks in the approximate index", "none", (("sum(hearth_prefix_index_blocks)", "blocks"),)),
            Panel("KV cache in use, fullest", "percentunit", (("topk(10, max by (upstream, dp_rank) (hearth_engine_kv_usage_ratio))", "{{upstream}} {{dp_rank}}"),)),
        ),
    ),
    (("tenant", "label_values(hearth_tenant_requests_total, tenant)"),),
)  # fmt: skip

PAIRS = Dashboard(
    "hearth-pairs",
    "Hearth: prefill and decode",
    (
        (
            Panel("Prefill queue by role", "s", (("sum by (pool, role) (hearth_pool_prefill_queue_seconds)", "{{pool}} {{role}}"),), "Engine-seconds of prompt tokens that are not computed yet."),
            Panel("Running sequences by role", "none", (("sum by (pool, role) (hearth_pool_running_requests)", "{{pool}} {{role}}"),)),
            Panel("Waiting in engines' queues", "none", (("max by (pool, role) (hearth_pool_waiting_requests)", "{{pool}} {{role}}"),)),
        ),
        (
            Panel("KV transfer", "s", tuple((quantile(at, "hearth_kv_transfer_duration_seconds", "connector"), f"{{{{connector}}}} p{round(100 * at)}") for at in (0.5, 0.99))),
            Panel("Transfers that failed or expired", "none", (("sum by (pool) (increase(hearth_engine_nixl_failed_transfers_total[5m]))", "{{pool}} failed"), ("sum by (pool) (increase(hearth_engine_nixl_expired_requests_total[5m]))", "{{pool}} expired"))),
            Panel("Transferred", "Bps", ((rate("hearth_engine_nixl_transferred_bytes_total", "pool"), "{{pool}}"),)),
        ),
        (
            Panel("Pairs, and why none", "reqps", ((rate("hearth_pair_attempts_total"), "pairs"), (rate("hearth_pair_fallbacks_total", "reason"), "{{reason}}"))),
            Panel("Engine time by phase", "s", ((mean("hearth_engine_queue_seconds", "pool, role"), "{{pool}} {{role}} queue"), (mean("hearth_engine_prefill_seconds", "pool, role"), "{{pool}} {{role}} prefill"), (mean("hearth_engine_decode_seconds", "pool, role"), "{{pool}} {{role}} decode"))),
            Panel("Preemptions", "none", ((rate("hearth_engine_preemptions_total", "pool, role"), "{{pool}} {{role}}"),)),
        ),
        (
            Panel("Engines by role", "none", (("max by (pool, role) (hearth_pool_engines)", "{{pool}} {{role}}"),), stacked=True),
            Panel("Accepted of drafted tokens", "percentunit", ((share("hearth_engine_accepted_draft_tokens_total", "hearth_engine_draft_tokens_total", "pool, role"), "{{pool}} {{role}}"),)),
            Panel("GPU use", "percentunit", (("avg by (node) (hearth_gpu_utilization_ratio)", "{{node}}"),), "From agents."),
        ),
    ),
)  # fmt: skip

MONEY = Dashboard(
    "hearth-money",
    "Hearth: cascades and money",
    (
        (
            Panel("Spend by tenant, an hour", "none", (("topk(20, sum by (tenant) (increase(hearth_cost_total[1h])))", "{{tenant}}"),), "By the prices of model_list. Bills come from usage records.", stacked=True),
            Panel("Spend by model, an hour", "none", (("sum by (model_name) (increase(hearth_cost_total[1h]))", "{{model_name}}"),), stacked=True),
            Panel("Budgets used, most", "percentunit", (('topk(15, max by (tenant) (hearth_limit_used_ratio{limit="budget"}))', "{{tenant}}"),)),
        ),
        (
            Panel("Cost of a pool, an hour", "none", (("max by (pool) (increase(hearth_pool_cost_total[1h]))", "{{pool}}"),), "Engine-hours times price, idle time included."),
            Panel("Money per million tokens", "none", (('1000000 * max by (pool) (increase(hearth_pool_cost_total[1h])) / (sum by (pool) (increase(hearth_pool_tokens_total{kind!="cached_input"}[1h])) > 0)', "{{pool}}"),)),
            Panel("Cost of pools by tenant, an hour", "none", (('sum by (pool, tenant) (increase(hearth_pool_tokens_total{kind!="cached_input"}[1h])) / on (pool) group_left () (sum by (pool) (increase(hearth_pool_tokens_total{kind!="cached_input"}[1h])) > 0) * on (pool) group_left () max by (pool) (increase(hearth_pool_cost_total[1h]))', "{{tenant}} on {{pool}}"),), stacked=True),
        ),
        (
            Panel("Answers of cascades by model", "reqps", ((rate("hearth_cascade_answers_total", "cascade, model_name"), "{{cascade}} {{model_name}}"),), stacked=True),
            Panel("Escalated", "percentunit", ((share("hearth_cascade_escalated_requests_total", "hearth_cascade_requests_total", "cascade"), "{{cascade}}"),)),
            Panel("Saved against always the largest", "percentunit", ((f"1 - {rate('hearth_cascade_cost_total', 'cascade')} / ({rate('hearth_cascade_cost_always_top_total', 'cascade')} > 0)", "{{cascade}}"),)),
        ),
        (
            Panel("Guarantees in force", "none", (("min by (cascade) (hearth_cascade_guarantee_active)", "{{cascade}}"),)),
            Panel("Shadow samples that agree", "percentunit", (("min by (cascade) (hearth_cascade_shadow_agreement_ratio)", "{{cascade}}"),)),
            Panel("Held back, p95", "s", ((quantile(0.95, "hearth_cascade_holdback_seconds", "cascade"), "{{cascade}}"),)),
        ),
    ),
)  # fmt: skip

GATEWAY = Dashboard(
    "hearth-gateway",
    "Hearth: what the gateway costs",
    (
        (
            Panel("CPU by process", "percentunit", (('rate(process_cpu_seconds_total{job="hearth"}[$__rate_interval])', "{{instance}} {{process}}"),), "1 is a core."),
            Panel("CPU a request", "s", (('sum(rate(process_cpu_seconds_total{job="hearth"}[$__rate_interval])) / (sum(rate(hearth_requests_total[$__rate_interval])) > 0)', "seconds"),)),
            Panel("Memory", "bytes", (('process_resident_memory_bytes{job="hearth"}', "{{instance}} {{process}}"),)),
        ),
        (
            Panel("Requests in flight", "none", (("sum by (instance) (hearth_requests_in_flight)", "{{instance}}"),)),
            Panel("Connections, tasks", "none", (("sum by (instance) (hearth_downstream_connections)", "{{instance}} connections"), ("sum by (instance) (hearth_event_loop_tasks)", "{{instance}} tasks"))),
            Panel("File descriptors", "percentunit", (('process_open_fds{job="hearth"} / process_max_fds{job="hearth"}', "{{instance}} {{process}}"),)),
        ),
        (
            Panel("Updates between gateways", "none", ((rate("hearth_replica_sync_updates_sent_total", "instance"), "{{instance}} sent"), (rate("hearth_replica_sync_updates_received_total", "instance"), "{{instance}} received"), (rate("hearth_replica_sync_updates_lost_total", "instance, reason"), "{{instance}} lost: {{reason}}"))),
            Panel("Redis", "s", (("max by (instance) (hearth_redis_staleness_seconds)", "{{instance}} late"),)),
            Panel("Retries that the budget did not allow", "none", ((rate("hearth_retry_budget_exhausted_total", "kind"), "{{kind}}"),)),
        ),
        (
            Panel("Exceptions", "none", (("sum by (loop) (increase(hearth_callback_errors_total[5m]))", "{{loop}}"),), "Any is a bug to report."),
            Panel("Log lines dropped", "none", (("sum by (log) (increase(hearth_log_lines_dropped_total[5m]))", "{{log}}"),)),
            Panel("Last reloads", "none", (("min by (instance) (hearth_config_last_reload_successful)", "{{instance}} configuration"), ("min by (instance) (hearth_policy_last_reload_successful)", "{{instance}} policy"))),
        ),
    ),
)  # fmt: skip

DASHBOARDS = (OVERVIEW, OBJECTIVES, CACHE, PAIRS, MONEY, GATEWAY)

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard in Grafana's classic model."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["hearth"],
        "timezone": "",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "graphTooltip": 1,
        "links": [{"type": "dashboards", "tags": ["hearth"], "title": "Hearth", "asDropdown": True, "keepTime": True}],
        "templating": {"list": [*_variables(dashboard)]},
        "annotations": {"list": []},
        "panels": [*_panels(dashboard)],
    }


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    for name, query in dashboard.variables:
        yield {
            "name": name,
            "type": "query",
            "datasource": SOURCE,
            "query": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row in dashboard.rows:
        width, height = 24 // len(row), 4 if row[0].kind == "stat" else 8
        for at, panel in enumerate(row):
            number += 1
            yield _panel(panel, number, {"h": height, "w": width, "x": at * width, "y": top})
        top += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    is_table = panel.kind == "table"
    shown: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "gridPos": place,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": chr(65 + at),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                **({"instant": True, "format": "table"} if is_table else {}),
            }
            for at, (expression, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
    }
    if panel.kind == "timeseries":
        custom = {"fillOpacity": 18 if panel.stacked else 6, "lineWidth": 1, "showPoints": "never"}
        shown["fieldConfig"]["defaults"]["custom"] = custom | (
            {"stacking": {"mode": "normal", "group": "A"}} if panel.stacked else {}
        )
        shown["options"] = {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"displayMode": "list"}}
    return shown


def text_of(dashboard: Dashboard) -> str:
    """Return the file of a dashboard."""
    return json.dumps(document(dashboard), indent=1, ensure_ascii=False) + "\n"


def path_of(dashboard: Dashboard) -> Path:
    """Return where its file stands."""
    return FOLDER / f"{dashboard.uid}.json"


if __name__ == "__main__":
    for each in DASHBOARDS:
        path_of(each).write_text(text_of(each), encoding="utf-8")
