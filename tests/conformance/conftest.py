"""Lets the contracts' assertions explain themselves, as those of test modules do."""

import pytest

from tests.conformance.subject import CONTRACTS

pytest.register_assert_rewrite(*CONTRACTS)
