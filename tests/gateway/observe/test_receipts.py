"""Receipts are kept for the last requests, found by id, and tell no prompt."""

import msgspec

from cascade.record import CascadeResult, CascadeStep
from gateway.observe.receipts import BATCH_SIZE, ReceiptFilter, ReceiptStore
from routing.blocks import cut_prompt
from routing.rejection import Reason
from tests.gateway.samples import a_request, an_attempt, an_outcome


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
