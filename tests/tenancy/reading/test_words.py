"""Every word of a policy has its own meaning."""

from tenancy.quota import Quota
from tenancy.reading.words import HEADERS, JWT, QUOTA, TENANT, TIER


def test_every_word_fills_a_field_of_its_own() -> None:
    """None is read twice, and all limits there are have a word."""
    for table in (QUOTA, TENANT, TIER, JWT, HEADERS):
        fields = [word.field for word in table.values()]
        assert len(set(fields)) == len(fields)
    assert {word.field for word in QUOTA.values()} == set(Quota.__dataclass_fields__)
