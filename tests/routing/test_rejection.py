"""The one exception of the decisions."""

from routing.rejection import Reason, RequestRejected


def test_a_rejection_says_why_and_where() -> None:
    """Reason, words, field, and when to come back."""
    rejected = RequestRejected(Reason.BAD_REQUEST, "no good", param="messages[2]", retry_after_s=1.5)
    assert (rejected.reason, rejected.message, rejected.param, rejected.retry_after_s) == (
        Reason.BAD_REQUEST,
        "no good",
        "messages[2]",
        1.5,
    )
    assert str(rejected) == "no good"
    assert repr(rejected) == "RequestRejected(bad_request, 'no good', param='messages[2]')"
    assert repr(RequestRejected(Reason.NO_POD_READY, "none")) == "RequestRejected(no_pod_ready, 'none')"


def test_reasons_are_stable_codes() -> None:
    """Clients and dashboards match on them: lower case, one word each, no two alike."""
    codes = [reason.value for reason in Reason]
    assert len(set(codes)) == len(codes)
    assert all(code.replace("_", "").isalpha() and code.islower() for code in codes)
    assert [reason.name.lower() for reason in Reason] == codes
