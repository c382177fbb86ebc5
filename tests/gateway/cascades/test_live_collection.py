"""Live requests to a labelled file: who is sampled, what it may cost, how answers are labelled, and what is written."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cascade.calibration.labelled_file import read_labelled
from cascade.judging import HoldbackSettings
from cascade.models import Cascade, CascadeModel, HoldbackWindow, Price
from gateway.cascades.cascade_config import CascadeConfig
from gateway.cascades.cascade_run import CascadePlan, CascadeRun
from gateway.cascades.constraints import CascadeConstraints, EscalationLimiter
from gateway.cascades.features import read_features
from gateway.cascades.live_collection import LiveCollector
from gateway.cascades.shadow_sampling import ShadowAnswer
from gateway.config.cascades import CollectEntry
from gateway.pipeline.attempt import AttemptResult
from routing.request import Api, Usage
from tenancy.tenants import Tenant
from tests.gateway.http.rig import MODEL, a_chat, a_rig, request_bytes
from tests.gateway.http.scripted import until
from tests.scenarios.cascade_pods import asking, some_cascade_pods

CANARY = "canary-91c2"
CASCADE = Cascade(
    "auto",
    (CascadeModel("small", Price(0.0, None, 1.0)), CascadeModel("large", Price(0.0, None, 1.0))),
    HoldbackWindow(tokens=8),
    judges_unary=True,
)
OPEN = Tenant("open", cascade_collect=True)


def body(text: str) -> bytes:
    return json.dumps({"model": "auto", "messages": [{"role": "user", "content": f"{CANARY} {text}"}]}).encode()


def plan(sent: bytes, **changes: Any) -> CascadePlan:
    found = CascadePlan(
        cascade=CASCADE,
        calibration=None,
        hold_back=HoldbackSettings(tokens=8),
        features=read_features(sent),
        constraints=CascadeConstraints(0, 1),
        allowed_models=(0, 1),
        start_index=1,
        api=Api.CHAT,
        stream=False,
        sequences=1,
        escalation_limiter=EscalationLimiter(),
        tokens=10,
        output_tokens=5,
    )
    return msgspec.structs.replace(found, **changes)


class FakeModels:
    """Models that differ on hard questions, and a judge that prefers the large one's answer."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.calls: list[str] = []

    async def collect(self, model: str, top: int) -> bytes | None:
        self.calls.append(model)
        if self._text == "lost":
            return None
        token = {"logprob": -0.1, "top_logprobs": [{"logprob": -0.1}, {"logprob": -2.5}]}
        answer = "wrong" if model == "small" and self._text == "hard" else "right"
        choice = {"message": {"content": answer}, "logprobs": {"content": [token] * top}, "finish_reason": "stop"}
        return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 4}}).encode()

    async def ask(self, question: bytes | None, model: str) -> ShadowAnswer | None:
        self.calls.append(model)
        first = (question or b"").partition(b"First answer:\n")[2]
        return ShadowAnswer("SECOND" if first.startswith(b"wrong") else "FIRST", Usage(30, 1))


async def collected(
    entry: CollectEntry, text: str = "easy", tenant: Tenant = OPEN, *, is_answered: bool = True, **changes: Any
) -> FakeModels:
    """One request through a collector of its own."""
    collector = LiveCollector(draw=lambda: 0.5, clock=lambda: 0.0)
    collector.apply({"auto": CascadeConfig(CASCADE, HoldbackSettings(), collect=entry)})
    models = FakeModels(text)
    sample = collector.reserve(plan(body(text), **changes), body(text), tenant, models.collect, models.ask)
    if sample is not None:
        collector.settle(sample, is_answered=is_answered)
        await asyncio.gather(*collector._tasks)
    status: Any = collector.status("auto")
    models.calls += [f"failed {reason}" for reason in status["failures"]]
    collector.close()
    return models


def lines(entry: CollectEntry) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in Path(entry.file).read_text().splitlines()]


def content(entry: CollectEntry) -> tuple[str, int]:
    """Text and mode of the file."""
    path = Path(entry.file)
    return path.read_text(), path.stat().st_mode & 0o777


@pytest.fixture
def entry(tmp_path: Path) -> CollectEntry:
    return CollectEntry(str(tmp_path / "labels.jsonl"), share=1.0)


async def test_a_row_has_labels_and_signals_and_no_text(entry: CollectEntry) -> None:
    """One by agreement, one by nothing; the file is its owner's."""
    assert (await collected(entry)).calls == ["small", "large"]
    await collected(entry, "hard")
    assert [row["label"] for row in lines(entry)] == ["agreement", "none"]
    assert 0.0 < lines(entry)[0]["rungs"]["small"]["margin"] <= 1.0
    written, mode = content(entry)
    assert CANARY not in written
    assert "right" not in written
    assert mode == 0o600
    labelled = read_labelled(written.encode())
    assert [row.scores for row in labelled.rows] == [(1.0, 1.0), (0.0, 1.0)]
    await collected(replace(entry, store_prompts=True))
    assert CANARY in lines(entry)[-1]["prompt"]


async def test_a_judge_and_a_scorer_label_what_differs(entry: CollectEntry, tmp_path: Path) -> None:
    """The judge in both orders, and only there; a scorer that fails is counted, and the rest goes on."""
    models = await collected(replace(entry, judge_model="judge"), "hard")
    assert models.calls == ["small", "large", "judge", "judge"]
    assert lines(entry)[-1]["rungs"]["small"]["verdict"] == 1
    assert (await collected(replace(entry, judge_model="judge"))).calls == ["small", "large"]
    program = tmp_path / "score.py"
    program.write_text(
        "import json, sys\nanswers = json.load(sys.stdin)['answers']\n"
        "print(json.dumps({'scores': {m: float(a == 'right') for m, a in answers.items()}}))\n"
    )
    await collected(replace(entry, scorer=(sys.executable, str(program))), "hard")
    assert lines(entry)[-1]["label"] == "scorer"
    assert lines(entry)[-1]["rungs"]["small"]["score"] == 0.0
    models = await collected(replace(entry, scorer=(sys.executable, "-c", "raise SystemExit(3)")), "hard")
    assert models.calls[-1].startswith("failed scorer: it ended with status 3")
    assert lines(entry)[-1]["label"] == "none"


@pytest.mark.parametrize(
    ("tenant", "changes"),
    [
        (Tenant("closed"), {}),
        (OPEN, {"allowed_models": (1,)}),
        (OPEN, {"sequences": 2}),
        (OPEN, {"api": Api.MESSAGES}),
        (OPEN, {"constraints": CascadeConstraints(0, 1, may_escalate=False)}),
        (OPEN, {"constraints": CascadeConstraints(0, 1, quality_first=True)}),
    ],
)
async def test_only_what_may_be_sampled_is(entry: CollectEntry, tenant: Tenant, changes: dict[str, Any]) -> None:
    """By its tenant's policy, and where any model of the cascade may answer and would be judged."""
    assert (await collected(entry, tenant=tenant, **changes)).calls == []
    assert lines(entry) == []


async def test_a_request_without_an_answer_is_not_collected(entry: CollectEntry) -> None:
    """What it reserved is free again, so that the next one fits."""
    collector = LiveCollector(draw=lambda: 0.5, clock=lambda: 0.0)
    limited = replace(entry, max_budget_per_hour=61.0)
    collector.apply({"auto": CascadeConfig(CASCADE, HoldbackSettings(), collect=limited)})
    models, sent = FakeModels("easy"), body("easy")
    for _ in range(3):
        sample = collector.reserve(plan(sent), sent, OPEN, models.collect, models.ask)
        assert sample is not None
        collector.settle(sample, is_answered=False)
    collector.close()
    assert (models.calls, lines(entry)) == ([], [])


async def test_budgets_bound_what_is_sent(entry: CollectEntry) -> None:
    """Money, tokens and rows; a request that no model answered leaves no row and is counted."""
    # The budget of ten minutes is a sixth of an hour's; one request of two models reserves 10.
    assert (await collected(replace(entry, max_budget_per_hour=59.0))).calls == []
    assert (await collected(replace(entry, max_budget_per_hour=61.0))).calls == ["small", "large"]
    assert (await collected(replace(entry, max_tokens_per_hour=100))).calls == []
    assert (await collected(replace(entry, max_rows=1))).calls == []
    assert (await collected(replace(entry, share=0.4))).calls == []
    assert (await collected(entry, "lost")).calls == ["small", "failed small: no answer"]
    assert len(lines(entry)) == 1


async def test_signals_of_reasoning_are_left_out_where_clients_stream(entry: CollectEntry) -> None:
    """A unary response does not tell its tokens from those of the answer, and clients' answers are judged without."""

    class Reasoning(FakeModels):
        async def collect(self, model: str, top: int) -> bytes | None:
            response = json.loads(await super().collect(model, top) or b"")
            response["choices"][0]["message"]["reasoning"] = "let me see"
            return json.dumps(response).encode()

    for stream in (True, False):
        collector = LiveCollector(draw=lambda: 0.5, clock=lambda: 0.0)
        collector.apply({"auto": CascadeConfig(CASCADE, HoldbackSettings(), collect=entry)})
        models = Reasoning("easy")
        sample = collector.reserve(plan(body("easy"), stream=stream), body("easy"), OPEN, models.collect, models.ask)
        assert sample is not None
        collector.settle(sample, is_answered=True)
        await asyncio.gather(*collector._tasks)
        collector.close()
    assert ["margin" in row["rungs"]["small"] for row in lines(entry)] == [False, True]


@pytest.mark.timeout(240)
async def test_a_gateway_collects_of_permitted_tenants_only(tmp_path: Path) -> None:
    """With simulated models: one tenant permits it, the other does not."""
    keys = {name: [sha256(f"sk-{name}".encode()).hexdigest()] for name in ("open", "closed")}
    policy = {"auth": {"keys": keys}, "tenants": {"open": {"cascade_collect": True}, "closed": {}}}
    file = tmp_path / "labels.jsonl"
    async with some_cascade_pods(tmp_path, policy=policy, collect={"file": str(file), "share": 1.0}) as pods:
        for tenant, count in (("closed", 2), ("open", 3)):
            for number in range(count):
                sent = asking(f"{CANARY} {number}", max_tokens=8, stream=number % 2 == 0)
                status, _, _ = await pods.post("/v1/chat/completions", sent, authorization=f"Bearer sk-{tenant}")
                assert status == 200
        async with asyncio.timeout(120):
            while len(file.read_text().splitlines()) < 3:
                await pods.metrics()
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(rows) == 3
        assert all(0.0 <= row["rungs"]["small"]["margin"] <= 1.0 for row in rows)
        assert CANARY not in file.read_text()


async def test_a_request_that_is_cancelled_before_it_has_begun_gives_its_reservation_back() -> None:
    """As by a newer one that supersedes it in the same turn of the loop: its task then runs no line."""
    settled: list[AttemptResult | None] = []
    async with a_rig() as rig:
        dispatcher = rig.front.dispatcher

        class CancelledAtOnce:
            names = frozenset({MODEL})

            def plan_run(self, *given: Any) -> CascadeRun:
                asyncio.get_running_loop().call_soon(lambda: [task.cancel() for task in dispatcher.in_flight])
                return CascadeRun(
                    plan(given[1]), given[4], settled=lambda _, result: settled.append(result), choose=lambda *_: 1
                )

        dispatcher.cascades = cast("Any", CancelledAtOnce())
        client = await rig.client()
        await client.send(request_bytes("/v1/chat/completions", a_chat()))
        await until(lambda: bool(settled) and not dispatcher.in_flight)
    assert settled == [None]
