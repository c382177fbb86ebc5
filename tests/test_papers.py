"""What the papers show can be used as it stands there."""

import re

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.config.schema import config_schema
from tenancy.policy import Bare, HeaderRules
from tenancy.reading.policy import read_policy
from tenancy.reading.words import HEADERS, JWT, KEY, QUOTA, TENANT, TIER
from tenancy.telling.schema import policy_schema
from tests.sources import ROOT

POLICY = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")


def examples(text: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)


def test_the_policy_to_start_from_is_one() -> None:
    """For the reader and for editors."""
    (example,) = examples(POLICY)
    found = read_policy(example, {}, Bare())
    assert set(found.tiers) == {"gold", "silver", "bronze", "batch"}
    assert found.tenants["nightly"].quota.parallel_requests is None
    assert list(Draft202012Validator(policy_schema()).iter_errors(yaml.safe_load(example))) == []


@pytest.mark.parametrize("words", [QUOTA, TENANT, TIER, JWT, KEY, HEADERS], ids=lambda words: next(iter(words)))
def test_every_word_of_a_policy_is_explained(words: dict[str, object]) -> None:
    """And every header that is believed without being named."""
    assert [word for word in words if f"`{word}`" not in POLICY and f"{word}: " not in POLICY] == []
    assert [name for name in HeaderRules().names if f"`{name}`" not in POLICY] == []


def test_the_configuration_is_one() -> None:
    """Of the papers, as editors see it."""
    whole = examples((ROOT / "docs" / "configuration.md").read_text(encoding="utf-8"))[0]
    assert list(Draft202012Validator(config_schema()).iter_errors(yaml.safe_load(whole))) == []
