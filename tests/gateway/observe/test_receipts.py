"""Receipts are kept for the last requests, found by id, and tell no prompt."""

import tracemalloc

import msgspec
import pytest

from cascade.record import CascadeResult, CascadeStep
from gateway.observe.receipts import BATCH_SIZE, ReceiptFilter, ReceiptStore
from gateway.pipeline.attempt import ResumeBlocker
from gateway.pipeline.record import Outcome
from routing.blocks import cut_prompt
from routing.canary.rollout import CanaryReason
from routing.decision.placement import attempt_receipt
from routing.decision.router import Router
from routing.eligible import PairingFallback
from routing.rejection import Reason
from routing.request import Api, Usage
from tests.gateway.samples import a_request, an_attempt, an_outcome
from tests.routing.engines import ask, place, router_of


def test_a_receipt_is_found_by_its_id() -> None:
    """What happened stands in it: predicted and real, per attempt."""
    receipts = ReceiptStore()
    receipts.on_outcome(an_outcome())
    receipt = receipts.find("r-1")
    assert receipt is not None
    assert receipt.engine == "http://a:1"
    assert (receipt.attempts[0].predicted_cached_input_tokens, receipt.attempts[0].actual_cached_input_tokens) == (
        64,
        96,
    )
    assert receipts.find("r-2") is None


def test_the_oldest_are_forgotten() -> None:
    """The ring is bounded."""
    receipts = ReceiptStore(max_entries=2)
    for name in ("a", "b", "c"):
        receipts.on_outcome(an_outcome(request=a_request(id=name)))
    assert len(receipts) == 2
    assert [receipt.id for receipt in receipts.latest(ReceiptFilter())] == ["c", "b"]
    assert receipts.find("a") is None


def test_receipts_are_written_together_and_whoever_looks_sees_all() -> None:
    """Before a batch is full, when it is, and behind it; a bound of less than a batch holds as well."""
    receipts, few = ReceiptStore(), ReceiptStore(max_entries=3)
    for number in range(BATCH_SIZE + 5):
        for each in (receipts, few):
            each.on_outcome(an_outcome(request=a_request(id=str(number))))
        if number in {0, BATCH_SIZE - 1, BATCH_SIZE}:
            assert receipts.find(str(number)) is not None
            assert len(receipts) == number + 1
    newest = [str(number) for number in reversed(range(BATCH_SIZE + 5))]
    assert [receipt.id for receipt in receipts.latest(ReceiptFilter())] == newest
    assert [receipt.id for receipt in few.latest(ReceiptFilter())] == newest[:3]


def test_times_are_read_rounded() -> None:
    """To a millisecond of the day and a microsecond of the rest: what is finer is noise."""
    receipts = ReceiptStore()
    attempt = an_attempt(predicted_ttft_s=0.12345678, actual_ttft_s=1 / 3)
    receipts.on_outcome(an_outcome(at_s=1.23456, ttft_s=None, duration_s=2 / 3, attempts=(attempt,)))
    receipt = receipts.find("r-1")
    assert receipt is not None
    assert (receipt.at_s, receipt.ttft_s, receipt.duration_s) == (1.235, None, 0.666667)
    assert (receipt.attempts[0].predicted_ttft_s, receipt.attempts[0].actual_ttft_s) == (0.123457, 0.333333)


def test_receipts_are_filtered() -> None:
    """By each fact, and by several; a pod is any engine of it in any attempt."""
    receipts = ReceiptStore()
    receipts.on_outcome(an_outcome(request=a_request(id="1", session="s"), status=502))
    receipts.on_outcome(an_outcome(request=a_request(id="2", model="big"), tenant=None))
    retried = (an_attempt(engine="http://b:1#0", result="connection_reset"), an_attempt())
    receipts.on_outcome(an_outcome(request=a_request(id="3"), attempts=retried))
    receipts.on_outcome(an_outcome(request=a_request(id="4"), attempts=()))

    def found(**wanted: object) -> list[str]:
        return [receipt.id for receipt in receipts.latest(ReceiptFilter(**wanted))]  # type: ignore[arg-type]

    assert found(model="big") == ["2"]
    assert found(tenant="legal", status=200) == ["4", "3"]
    assert found(session="s") == ["1"]
    assert found(pod="http://b:1") == ["3"]
    assert found(pod="http://a:1") == ["3", "2", "1"]


def test_receipts_are_found_by_what_a_client_knows() -> None:
    """Its own id, and the model as it named it: an alias, a cascade, or the larger model before a downgrade."""
    receipts = ReceiptStore()
    steps = (CascadeStep("tiny", "escalated"), CascadeStep("big", "unjudged"))
    receipts.on_outcome(an_outcome(request=a_request(id="1"), client_request_id="c-1", requested_model="mini"))
    receipts.on_outcome(
        an_outcome(request=a_request(id="2", model="big"), cascade=CascadeResult("auto", "all", "tiny", steps))
    )
    receipts.on_outcome(an_outcome(request=a_request(id="3", downgraded_from="big")))
    receipts.on_outcome(an_outcome(request=a_request(id="4"), client_request_id="c-1"))

    def found(**wanted: object) -> list[str]:
        return [receipt.id for receipt in receipts.latest(ReceiptFilter(**wanted))]  # type: ignore[arg-type]

    assert found(id="c-1") == ["4", "1"]
    assert found(id="2") == ["2"]
    assert found(model="mini") == ["1"]
    assert found(model="auto") == ["2"]
    assert found(model="big") == ["3", "2"]
    assert (receipt := receipts.find("c-1")) is not None
    assert receipt.id == "4", "the latest of a client's own"


def test_receipts_are_found_by_reason_time_and_prefill_pod() -> None:
    """Bounds of time are inclusive."""
    receipts = ReceiptStore()
    pair = an_attempt(prefill_engine="http://p:1#2")
    receipts.on_outcome(an_outcome(request=a_request(id="1"), at_s=10.0, attempts=(pair,)))
    receipts.on_outcome(an_outcome(request=a_request(id="2"), at_s=20.0, status=429, reason=Reason.OVERLOADED))
    found = {
        name: [receipt.id for receipt in receipts.latest(wanted)]
        for name, wanted in {
            "reason": ReceiptFilter(reason="overloaded"),
            "since": ReceiptFilter(since_s=20.0),
            "until": ReceiptFilter(until_s=19.9),
            "both": ReceiptFilter(since_s=10.0, until_s=20.0),
            "pod": ReceiptFilter(pod="http://p:1"),
        }.items()
    }
    assert found == {"reason": ["2"], "since": ["2"], "until": ["1"], "both": ["2", "1"], "pod": ["1"]}


def test_a_receipt_holds_nothing_of_the_prompt() -> None:
    """Sizes only: neither the bytes behind the last block nor the hashes."""
    prompt = cut_prompt(b"my secret " * 20, seed=1)
    shown = msgspec.json.encode(an_outcome(request=a_request(prompt=prompt)).receipt())
    assert b"secret" not in shown
    assert str(prompt.blocks[0]).encode() not in shown
    assert b'"prompt_bytes":200' in shown


def a_routed_outcome(router: Router, number: int) -> Outcome:
    """As a real decision over all pods leaves it."""
    placement = place(router, ask(f"question {number}".encode() * 60), now_s=float(number))
    placement.first_token(number + 0.25)
    placement.release(number + 1.5)
    usage = Usage(200, 40, 16)
    attempt = attempt_receipt(placement, "ok", usage, arrived_s=number - 0.125, ended_s=number + 1.5)
    request = a_request(id=f"req-{number:028}", session=f"session {number}")
    return an_outcome(request=request, usage=usage, attempts=(attempt,), path="/v1/chat/completions", key_id="k-1")


def test_receipts_take_little_memory() -> None:
    """A full store over three pods takes at most 6 MB, and knows how much its receipts take."""
    router, receipts, count = router_of(3), ReceiptStore(), 512
    for number in range(count):  # What the router learns is not counted below.
        a_routed_outcome(router, number)
    tracemalloc.start()
    try:
        outcomes = [a_routed_outcome(router_of(3), number) for number in range(2)]
        del outcomes
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            receipts.on_outcome(a_routed_outcome(router, number))
        assert len(receipts) == count
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held / count * 4096 < 6 << 20
    assert receipts.encoded_bytes <= held


def test_receipts_are_bounded_by_their_bytes_too() -> None:
    """Long ones push out more of the oldest; one written again is counted once."""
    receipts = ReceiptStore(max_bytes=10_000)
    for number in range(100):
        receipts.on_outcome(an_outcome(request=a_request(id=f"{number:02}"), error="e" * 1_000))
    kept = [receipt.id for receipt in receipts.latest(ReceiptFilter())]
    assert 4 < len(kept) < 10
    assert kept == [f"{number:02}" for number in reversed(range(100 - len(kept), 100))]
    assert 5_000 < (before := receipts.encoded_bytes) <= 10_000
    receipts.on_outcome(an_outcome(request=a_request(id="99")))
    assert len(receipts) == len(kept)
    assert receipts.encoded_bytes == before - 1_002  # The text, and the length of its length.


def test_a_receipt_is_read_as_it_was_written() -> None:
    """Every field, with enumerations as such, and the candidates of a real decision written out."""
    receipts, router = ReceiptStore(), router_of(3)
    routed = a_routed_outcome(router, 7)
    pair = an_attempt(prefill_engine="http://p:1", connector="nixl", fallback_reason=next(iter(PairingFallback)))
    pair = msgspec.structs.replace(pair, canary=CanaryReason.SHARE)
    written = an_outcome(
        request=a_request(id="r-all", api=Api.RESPONSES, session="s", downgraded_from="big"),
        reason=Reason.OVERLOADED,
        resume_failure=next(iter(ResumeBlocker)),
        cascade=CascadeResult("auto", "all", "tiny", (CascadeStep("tiny", "kept", signal=0.5),), ("big",)),
        attempts=(pair, *routed.attempts),
        slo_met=False,
        trace_id="ab" * 16,
        duration_s=0.25,
    )
    for outcome in (routed, written):
        receipts.on_outcome(outcome)
    found = receipts.find("r-all")
    assert found is not None
    attempts = found.attempts
    assert [each.engine for each in attempts[1].candidates] == [each.engine for each in routed.attempts[0].candidates]
    assert len(tuple(attempts[1].candidates)) == 3
    assert msgspec.structs.replace(found, attempts=()) == msgspec.structs.replace(written.receipt(), attempts=())
    assert attempts[0] == pair
    assert attempts[1].canary is msgspec.UNSET, "no canary had a part in it"
    assert (type(found.api), type(found.reason), type(found.usage)) == (Api, Reason, Usage)


@pytest.mark.parametrize("strange", [{"error": "\ud800"}, {"usage": Usage(1 << 70, 1, None)}])
def test_a_receipt_that_cannot_be_encoded_is_kept_as_it_is(strange: dict[str, object]) -> None:
    """A lone surrogate in an error's text, or a pod's count beyond 64 bits, loses no receipt of the batch."""
    receipts = ReceiptStore()
    receipts.on_outcome(an_outcome(request=a_request(id="1"), **strange))
    receipts.on_outcome(an_outcome(request=a_request(id="2")))
    assert [receipt.id for receipt in receipts.latest(ReceiptFilter(tenant="legal"))] == ["2", "1"]
    assert (found := receipts.find("1")) is not None
    assert all(getattr(found, name) == value for name, value in strange.items())
    assert receipts.encoded_bytes > 4_096


def test_a_receipt_that_cannot_be_encoded_keeps_no_other_from_being_kept() -> None:
    """Whatever a later version puts into a record: what has ended since must not pile up."""
    receipts = ReceiptStore(max_entries=2 * BATCH_SIZE)
    receipts.on_outcome(an_outcome(request=a_request(id="odd"), error=object()))
    for number in range(3 * BATCH_SIZE):
        receipts.on_outcome(an_outcome(request=a_request(id=str(number))))
    assert len(receipts) == 2 * BATCH_SIZE
    assert receipts.find(str(3 * BATCH_SIZE - 1)) is not None
