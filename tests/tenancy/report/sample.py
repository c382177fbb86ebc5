"""A policy that has a bit of everything."""

from tests.tenancy.policies import A, B

POLICY = f"""\
auth:
  keys: {{legal: [{A}], search: [{B}]}}
tiers:
  gold: &usual
    priority: 10
    ttft_s: 0.8
  silver:
    <<: *usual
    priority: 5
    on_overload: relax
  bronze: {{priority: 0}}
defaults:
  models: [small]
  rpm: 100
  per_user: {{rpm: 5}}
tenants:
  legal:
    tier: silver
    models: [small, big]
    aliases: {{gpt: big}}
    cache_isolation: law
    max_budget: 5.5
    groups: {{interns: {{tpm: 9}}}}
  search:
    per_user: {{tpm: 7}}
    rpm: off
"""
