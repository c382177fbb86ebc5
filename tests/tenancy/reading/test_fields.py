"""Single values of a policy are read as they are meant."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from tenancy.document import InvalidValue
from tenancy.reading import fields
from tenancy.reading.fields import COUNT, HEADERS, JWT, OFF, QUOTA, TENANT, TIER, or_off
from tenancy.tenants import Quota


@pytest.mark.parametrize(
    ("stated", "seconds"), [("30s", 30), ("5m", 300), ("12h", 43_200), ("1d", 86_400), ("2w", 1_209_600)]
)
def test_durations_are_seconds(stated: str, seconds: int) -> None:
    """As LiteLLM writes them, and weeks."""
    assert fields.duration(stated) == seconds


@pytest.mark.parametrize("stated", ["", "1", "d", "0d", "1mo", "1.5h", "-1d", "1 d", "1000000d"])
def test_what_is_no_duration_is_wrong(stated: str) -> None:
    """Months are of no fixed length."""
    with pytest.raises(InvalidValue):
        fields.duration(stated)


@pytest.mark.parametrize(
    "stated",
    [
        "2026-12-01",
        "2026-12-01T00:00:00Z",
        "2026-12-01T01:00:00+01:00",
        "2026-12-01 00:00:00",
        date(2026, 12, 1),
        datetime(2026, 12, 1, tzinfo=UTC),
        datetime(2026, 12, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_moments_are_unix_time(stated: object) -> None:
    """YAML makes dates of some texts by itself; without a zone it is UTC."""
    assert fields.moment(stated) == 1_796_083_200.0


def test_off_lifts_a_limit() -> None:
    """Quoted or not; repr is what is said."""
    parse = or_off(COUNT).parse
    assert parse("off") is parse(False) is OFF
    assert parse(5) == 5
    assert repr(OFF) == "off"


@pytest.mark.parametrize(
    "stated", ["https://a", "https://a:8/x?y=z", "http://127.0.0.1:8/x", "http://localhost", "http://[::1]:8"]
)
def test_keys_come_over_tls_or_from_here(stated: str) -> None:
    """Whoever could change them on their way could make tokens."""
    assert fields.url(stated) == stated


@pytest.mark.parametrize(
    "stated",
    ["http://a", "http://127.0.0.1.evil", "https://", "https://u:p@a", "ftp://a", "https://a#b", "http://localhost@a"],
)
def test_other_urls_are_wrong(stated: str) -> None:
    """Also those that only look as if they were from here."""
    with pytest.raises(InvalidValue):
        fields.url(stated)


def test_secrets_and_digests_are_not_repeated() -> None:
    """What is wrong with them is said without them."""
    for parse, stated in ((fields.secret, "hunter2"), (fields.digest, "sk-hunter2")):
        with pytest.raises(InvalidValue) as wrong:
            parse(stated)
        assert "hunter2" not in str(wrong.value)


def test_every_field_fills_a_field_of_its_own() -> None:
    """None is read twice, and all limits there are have a word."""
    for table in (QUOTA, TENANT, TIER, JWT, HEADERS):
        fields = [word.field for word in table.values()]
        assert len(set(fields)) == len(fields)
    assert {word.field for word in QUOTA.values()} == set(Quota.__dataclass_fields__)
