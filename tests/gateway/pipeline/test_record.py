"""A fact of a request is declared once, in its record; what shows it is a list of the record's fields."""

from __future__ import annotations

import msgspec
import pytest

from gateway.pipeline.record import Receipt, RecordFields
from tests.gateway.samples import an_outcome


def test_a_receipt_has_all_that_a_record_shares_with_it() -> None:
    """Each field of a receipt is the record's."""
    outcome = an_outcome(frontend="extproc", extproc_mode="none/none", wasted_tokens=7)
    receipt = outcome.receipt()
    assert type(receipt) is Receipt
    assert all(getattr(receipt, name) == getattr(outcome, name) for name in Receipt.__struct_fields__)


def test_a_list_of_fields_is_written_in_its_order_and_under_its_names() -> None:
    """A field may have another name there, or be filled in by the writer."""
    fields = RecordFields("tenant", "request_id=id", "cost=unset", "ttft_s")
    shown = msgspec.json.encode(fields.of(an_outcome(), cost=1.5))
    assert shown == b'{"tenant":"legal","request_id":"r-1","cost":1.5,"ttft_s":0.25}'


def test_a_list_names_fields_of_records_only() -> None:
    """A misspelt field is found when the module is imported."""
    with pytest.raises(AttributeError, match="tennant"):
        RecordFields("tennant")
