"""Policies in few words, and what is wrong with them."""

from hashlib import sha256

import pytest

from tenancy.document import InvalidDocument
from tenancy.policy import InlineFiles, KeyFile, Policy
from tenancy.reading.policy import read_policy
from tenancy.tenants import Tenant

A, B = sha256(b"key-a").hexdigest(), sha256(b"key-b").hexdigest()

KEYED = f"auth: {{keys: {{a: [{A}], b: [{B}]}}}}\n"

TIERS = """
tiers:
  gold: {priority: 10, ttft_s: 0.8, tpot_s: 0.04, weight: 8, guaranteed_share: 0.4, max_queue_s: 0.5,
    on_overload: reject}
  silver: {priority: 0, ttft_s: 2, ttft_uncached_factor: 3, weight: 3, guaranteed_share: 0.2, on_overload: relax}
  bronze: {priority: -10, guaranteed_share: 0.02, max_queue_s: 20}
  batch: {priority: -20, best_effort: true}
"""


def policy(source: str, *files: KeyFile) -> Policy:
    return read_policy(source, {}, InlineFiles(*files))


def faults(source: str, *files: KeyFile) -> list[str]:
    with pytest.raises(InvalidDocument) as rejected:
        policy(source, *files)
    return [str(fault) for fault in rejected.value.errors]


def whose(found: Policy) -> dict[str, Tenant]:
    return {digest: key.caller.tenant for digest, key in found.keys.items()}
