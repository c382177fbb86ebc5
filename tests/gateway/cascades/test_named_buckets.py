"""Task buckets that a request or its tenant names: which one counts, and where none of that name is known."""

from __future__ import annotations

import pytest

from cascade.models import Cascade, CascadeModel
from gateway.cascades.constraints import read_constraints
from gateway.cascades.features import CascadeOptions
from routing.rejection import RequestRejected
from tenancy.tenants import Tenant

CASCADE = Cascade("auto", (CascadeModel("small"), CascadeModel("big")), buckets=frozenset({"support", "legal"}))
OTHER = Cascade("other", CASCADE.models)


@pytest.mark.parametrize(
    ("header", "body", "tenant", "bucket"),
    [
        (None, None, None, None),
        (None, None, "legal", "legal"),
        (None, "support", "legal", "support"),
        (b"legal", "support", None, "legal"),
        (None, None, "unknown", None),
    ],
)
def test_the_client_names_before_its_tenant(
    header: bytes | None, body: str | None, tenant: str | None, bucket: str | None
) -> None:
    """A header before the body; a tenant's name counts where the cascade has it."""
    headers = {} if header is None else {b"x-hearth-cascade-bucket": header}
    terms = read_constraints(CASCADE, Tenant("t", cascade_bucket=tenant), headers, CascadeOptions(cascade_bucket=body))
    assert terms.bucket == bucket
    assert read_constraints(OTHER, Tenant("t", cascade_bucket=tenant), {}, CascadeOptions()).bucket is None


def test_a_bucket_that_the_cascade_does_not_have_is_rejected() -> None:
    """Each is a label of metrics: clients cannot make up more."""
    with pytest.raises(RequestRejected, match=r"Unknown bucket `made-up`.*legal, support"):
        read_constraints(CASCADE, Tenant("t"), {b"x-hearth-cascade-bucket": b"made-up"}, CascadeOptions())
