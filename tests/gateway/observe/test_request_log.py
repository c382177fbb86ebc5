"""One JSON line per request with the fields people search for, and one usage record for chargeback."""

import asyncio
import json
from typing import Any

import pytest

from gateway.config.models import ModelEntry
from gateway.observe.request_log import MAX_BATCH, OutcomeLog, request_line, usage_line
from gateway.pipeline.record import Outcome
from gateway.runtime.line_writer import LineWriter
from gateway.runtime.trace_context import RequestTrace
from routing.blocks import Prompt
from routing.rejection import Reason
from routing.request import Usage
from tests.gateway.samples import a_request, an_outcome

PRICES = {"tiny": ModelEntry("tiny", 2e-6, 1e-5, 1e-6)}


def line(outcome: Outcome, level: str = "info") -> dict[str, Any]:
    shown = request_line(outcome, lambda: level, PRICES)
    assert shown.endswith(b"\n")
    return dict(json.loads(shown))


def test_a_request_is_one_line_of_known_fields() -> None:
    """The fields, in their order, and nothing else."""
    outcome = an_outcome(requested_model="mini", path="/v1/chat/completions", client_request_id="c-7")
    assert list(line(outcome).items()) == [
        ("timestamp", "2026-11-20T14:53:18.250Z"),
        ("level", "info"),
        ("event", "request_completed"),
        ("message", "request completed"),
        ("request_id", "r-1"),
        ("trace_id", None),
        ("request_span_id", None),
        ("parent_span_id", None),
        ("tenant", "legal"),
        ("tier", "default"),
        ("key_id", None),
        ("api", "chat"),
        ("model", "tiny"),
        ("stream", True),
        ("status", 200),
        ("reason", None),
        ("upstream", "http://a:1"),
        ("dp_rank", None),
        ("attempts", 1),
        ("duration_s", 1.25),
        ("ttft_s", 0.25),
        ("queue_wait_s", 0.0),
        ("slo_met", None),
        ("input_tokens", 100),
        ("cached_input_tokens", 96),
        ("output_tokens", 11),
        ("resumes", 0),
        ("resume_failure", None),
        ("wasted_tokens", 0),
        ("client_request_id", "c-7"),
        ("path", "/v1/chat/completions"),
        ("requested_model", "mini"),
        ("role", "either"),
        ("cost", pytest.approx(4 * 2e-6 + 96 * 1e-6 + 11 * 1e-5)),
        ("providers", []),
    ]


@pytest.mark.parametrize(
    ("changes", "reason", "level"),
    [
        ({"status": 502, "reason": Reason.POD_LOST}, "pod_lost", "error"),
        ({"status": 404, "reason": Reason.UNKNOWN_MODEL}, "unknown_model", "info"),
        ({"status": 499}, None, "info"),
        ({"status": 400}, None, "info"),
    ],
)
def test_what_went_wrong_is_named(changes: dict[str, Any], reason: str | None, level: str) -> None:
    """Our reason, none where the status is the client's or the pod's; 5xx is an error, a client's fault is not."""
    shown = line(an_outcome(usage=None, ttft_s=None, **changes))
    assert (shown["reason"], shown["level"]) == (reason, level)
    assert shown["ttft_s"] is shown["input_tokens"] is shown["cached_input_tokens"] is shown["output_tokens"] is None


def test_the_trace_is_named() -> None:
    """Trace, the caller's span and ours; without tracing there is none of ours."""
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    names = ("trace_id", "request_span_id", "parent_span_id")
    shown = line(an_outcome(trace_id=trace_id, trace=RequestTrace(trace_id, parent_id)))
    assert [shown[name] for name in names] == [trace_id, None, parent_id]
    shown = line(an_outcome(trace_id=trace_id, trace=RequestTrace(trace_id, parent_id, root=0xAB)))
    assert [shown[name] for name in names] == [trace_id, "00000000000000ab", parent_id]


def test_the_level_keeps_lines_back() -> None:
    """At warning only requests that failed on our side are logged."""
    assert request_line(an_outcome(), lambda: "warning", PRICES) == b""
    assert line(an_outcome(status=503), "warning")["status"] == 503


def test_a_usage_record_is_priced() -> None:
    """Tokens times price; null where the model has none or the engine told nothing."""
    prices = {"tiny": ModelEntry("tiny", 2e-6, 1e-5)}
    shown = json.loads(usage_line(an_outcome(), prices))
    assert shown["input_cost"] == pytest.approx(2e-4)
    assert shown["output_cost"] == pytest.approx(1.1e-4)
    assert shown["schema"] == 2
    assert (shown["input_tokens"], shown["cached_input_tokens"], shown["output_tokens"]) == (100, 96, 11)
    assert (shown["tenant"], shown["model"], shown["api"], shown["request_id"]) == ("legal", "tiny", "chat", "r-1")
    assert (shown["tier"], shown["user"], shown["duration_s"], shown["coalesced_with"]) == ("default", None, 1.25, None)
    cheaper = json.loads(usage_line(an_outcome(), {"tiny": ModelEntry("tiny", 2e-6, 1e-5, 1e-6)}))
    assert cheaper["input_cost"] == pytest.approx(4 * 2e-6 + 96 * 1e-6)
    unpriced = json.loads(usage_line(an_outcome(), {}))
    untold = json.loads(usage_line(an_outcome(usage=None), prices))
    assert unpriced["input_cost"] is untold["input_cost"] is untold["output_cost"] is None


def test_a_usage_record_reports_what_a_rejected_request_requested() -> None:
    """Its reason and its sizes, from which a policy can be tried on it."""
    request = a_request(max_tokens=50, sequences=2, stream=False, prompt=Prompt((), (), 900))
    outcome = an_outcome(request=request, status=429, reason=Reason.RATE_LIMITED_TOKENS, usage=None, attempts=())
    shown = json.loads(usage_line(outcome, {}))
    assert (shown["reason"], shown["input_tokens"]) == ("rate_limited_tokens", None)
    assert (shown["stream"], shown["prompt_bytes"], shown["max_tokens"]) == (False, 900, 100)
    served = json.loads(usage_line(an_outcome(), {}))
    assert (served["reason"], served["stream"], served["max_tokens"]) == (None, True, None)


def test_cached_tokens_may_be_unknown() -> None:
    """Null is not zero."""
    assert json.loads(usage_line(an_outcome(usage=Usage(5, 1)), {}))["cached_input_tokens"] is None


class Taker(LineWriter):
    """Takes lines in place of a file, and can be waited for."""

    def __init__(self, wanted: int) -> None:
        self.lines: list[bytes] = []
        self.wanted = wanted
        self.has_all = asyncio.Event()

    def put(self, lines: bytes, count: int = 1) -> None:
        self.lines += lines.splitlines()
        if len(self.lines) >= self.wanted:
            self.has_all.set()


async def test_outcomes_are_written_soon_and_all() -> None:
    """Off the hot path, in order, also when more come than are encoded in one go; a flush leaves none behind."""
    many = 2 * MAX_BATCH + 5
    taker = Taker(many)
    log = OutcomeLog(taker, lambda outcome: outcome.id.encode() + b"\n")
    for number in range(many):
        log.on_outcome(an_outcome(request=a_request(id=str(number))))
    assert not taker.lines
    async with asyncio.timeout(120):
        await taker.has_all.wait()
    log.on_outcome(an_outcome(request=a_request(id="last")))
    log.flush()
    assert taker.lines == [str(number).encode() for number in range(many)] + [b"last"]
