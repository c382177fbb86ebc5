"""Words about roles and canaries."""

from __future__ import annotations

import pytest

from gateway.config.file import read_settings
from routing.canary import CanaryTerms
from routing.roles import RoleTerms


def test_roles_are_off_unless_asked_for() -> None:
    """True is all defaults; a mapping says what is otherwise."""
    assert read_settings("", {})[0].roles is None
    assert read_settings("roles: false", {})[0].roles is None
    assert read_settings("roles: true", {})[0].roles == RoleTerms()
    found = read_settings("roles: {ttft_s: 3, least_decode: 2}", {})[0].roles
    assert found == RoleTerms(ttft_s=3.0, least_decode=2)


def test_canaries_stand_in_their_order() -> None:
    """By pool, by revision."""
    settings, _ = read_settings("canaries: [{name: a, revision: v2}, {name: b, pool: fast, share: 0.1}]", {})
    assert settings.canaries == (CanaryTerms("a", revision="v2"), CanaryTerms("b", pool="fast", share=0.1))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("roles: 3", "roles: must be true or false, not a number"),
        ("roles: {switch: true}", "roles.switch: unknown key"),
        ("roles: {ttft: 3}", "roles.ttft: unknown key (did you mean `ttft_s`?)"),
        ("roles: {gain: 2}", "roles: min_stay_s: must be >= 0; gain, moved_per_minute: must be between 0 and 1"),
        ("canaries: [{name: a}]", "canaries[0]: pool: name the pool or the revision on trial"),
        ("canaries: [{name: a, pool: p, share: 2}]", "canaries[0]: share, error: must be between 0 and 1"),
    ],
)
def test_faults_name_their_place(words: str, fault: str) -> None:
    """As everywhere."""
    assert fault in [str(each) for each in read_settings(words, {})[1].faults]
