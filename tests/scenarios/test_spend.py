"""Usage records add up to what the counters say, to the token: each request is counted once, whatever it met."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.commands.spend import SpendReport, read_spending, rotated_files
from simulator.faults import NO_FAULT, Fault, FaultKind
from tests.scenarios.cascade_pods import CASCADE, ESCALATES, CascadePods, asking, empty, some_cascade_pods

CHAT = "/v1/chat/completions"

TENANTS = ("legal", "sales")

POLICY = {
    "auth": {"keys": {name: [sha256(f"sk-{name}".encode()).hexdigest()] for name in TENANTS}},
    "tenants": {"legal": {"coalesce": True}, "sales": {"models": [CASCADE, "big"]}},
}

Counts = dict[tuple[str, ...], float]


def keyed(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer sk-{tenant}"}


async def counters(pods: CascadePods, name: str, *labels: str) -> Counts:
    """The samples of one metric by these labels, others summed."""
    sums: Counts = {}
    for family in text_string_to_metric_families(await pods.metrics()):
        for sample in family.samples:
            if sample.name == name:
                key = tuple(sample.labels[label] for label in labels)
                sums[key] = sums.get(key, 0.0) + sample.value
    return {key: value for key, value in sums.items() if value}


async def written(pods: CascadePods, by: tuple[str, ...]) -> SpendReport:
    """The report, once all requests that the metrics count have their record."""
    counted = sum((await counters(pods, "hearth_requests_total", "status")).values())
    async with asyncio.timeout(120):
        while True:
            report = read_spending(rotated_files(pods.folder / "usage.jsonl"), by)
            if report.total.requests == counted:
                return report
            await pods.metrics()


async def stream(pods: CascadePods, body: dict[str, Any], tenant: str, *, leaves: bool = False) -> None:
    """A stream that its client reads to its end, or leaves after the first bytes."""
    url = pods.gateway.at("traffic", CHAT)
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body | {"stream": True}, headers=keyed(tenant)) as answer,
    ):
        if leaves:
            await answer.content.readany()
        else:
            await answer.read()


def rotated(log: Path) -> None:
    """What logrotate does before it sends SIGHUP, and once more for what it rotated before."""
    first = log.with_name(f"{log.name}.1")
    if first.exists():
        log.with_name(f"{log.name}.2.gz").write_bytes(gzip.compress(first.read_bytes()))
        first.unlink()
    os.rename(log, first)  # noqa: PTH104 - as logrotate does


async def rotate(pods: CascadePods) -> None:
    rotated(pods.folder / "usage.jsonl")
    pods.gateway.running.send_signal(signal.SIGHUP)
    await pods.gateway.until("reload_succeeded")


async def test_spending_agrees_with_the_counters(tmp_path: Path) -> None:
    """Resumed, cancelled, coalesced, escalated and rejected requests, over rotated and compressed records."""
    more = {"usage_log": str(tmp_path / "usage.jsonl")}
    async with some_cascade_pods(tmp_path, ESCALATES, policy=POLICY, copies=2, more=more) as pods:
        for _ in range(3):  # Escalated.
            await stream(pods, asking(), "sales")
            assert (await pods.post(CHAT, asking(), **keyed("legal")))[0] == 200
        same = {"model": "small", "messages": [{"role": "user", "content": "Same"}], "temperature": 0, "max_tokens": 60}
        await asyncio.gather(*(pods.post(CHAT, same, **keyed("legal")) for _ in range(6)))  # Coalesced.
        await rotate(pods)
        small = [pods.small, *pods.twins[::2]]
        for pod in small:  # Resumed.
            pod.set_fault(Fault(FaultKind.CUT, after_chunks=7, requests=1))
        for _ in range(3):
            await stream(pods, asking() | {"model": "small", "max_tokens": 40, "ignore_eos": True}, "legal")
        for pod in small:
            pod.set_fault(NO_FAULT)
        for _ in range(3):  # Cancelled.
            with suppress(aiohttp.ClientError):
                await stream(pods, asking() | {"model": "big", "max_tokens": 4000}, "sales", leaves=True)
        assert (await pods.post(CHAT, asking() | {"model": "small"}, **keyed("sales")))[0] == 404  # Rejected.
        await empty(pods)
        await rotate(pods)
        await stream(pods, asking(), "sales")

        by_tenant, by_model = await written(pods, ("tenant",)), await written(pods, ("tenant", "model"))
        for name in ("requests", "input_tokens", "cached_input_tokens", "output_tokens"):
            spent = {key: float(value) for key, row in by_tenant.rows.items() if (value := getattr(row, name))}
            assert spent == await counters(pods, f"hearth_tenant_{name}_total", "tenant"), name
        money = {key: row.cost for key, row in by_model.rows.items() if row.cost}
        assert money == pytest.approx(await counters(pods, "hearth_cost_total", "tenant", "model_name"))
        assert by_tenant.total.cost == pytest.approx(sum(money.values()))
        assert by_tenant.unreadable_lines == 0
        # The run had what it is about.
        assert sum((await counters(pods, "hearth_coalesced_requests_total", "model_name")).values()) >= 1
        assert sum((await counters(pods, "hearth_stream_resumes_total", "model_name")).values()) >= 1
        assert sum((await counters(pods, "hearth_cascade_escalated_requests_total", "cascade")).values()) >= 6
        statuses = await counters(pods, "hearth_requests_total", "status")
        assert statuses["499",] >= 1
        assert statuses["404",] == 1
        assert {path.name for path in rotated_files(tmp_path / "usage.jsonl")} == {
            *("usage.jsonl", "usage.jsonl.1", "usage.jsonl.2.gz")
        }
