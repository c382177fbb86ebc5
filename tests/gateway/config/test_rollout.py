"""Words about roles and canaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.loading import check_file, load_settings
from gateway.config.rollout import CanaryConfig
from gateway.config.settings import read_settings
from routing.canary.change import CanaryKind
from routing.pairing.roles import RoleTerms
from tenancy.document import InvalidDocument

NO_SHARE = "traffic_share: must be from 0.000001 to below 1; without the entry its pods serve like all others"


def test_roles_are_off_unless_requested() -> None:
    """True is all defaults; a mapping says what is otherwise."""
    assert read_settings("", {})[0].roles is None
    assert read_settings("roles: false", {})[0].roles is None
    assert read_settings("roles: true", {})[0].roles == RoleTerms()
    found = read_settings("roles: {ttft_s: 3, min_decode_engines: 2}", {})[0].roles
    assert found == RoleTerms(ttft_s=3.0, min_decode_engines=2)


def test_a_canary_is_read(tmp_path: Path) -> None:
    """By pool or revision; with the file that keeps its verdict."""
    settings, root = read_settings("canaries: [{name: b, pool: fast, traffic_share: 0.1, kind: configuration}]", {})
    assert not root.errors
    assert settings.canaries == (CanaryConfig("b", pool="fast", traffic_share=0.1, kind=CanaryKind.CONFIGURATION),)
    flags = "lower_precision: true, one_tenant_decides: true"
    more = f"{{name: a, revision: v2, {flags}, pairs_with_revision: v1, judge_model: big"
    settings, root = read_settings(f"canaries: [{more}, state_file: {tmp_path / 'canary.json'}}}]", {})
    assert not root.errors
    assert settings.canaries == (
        CanaryConfig(
            *("a", None, "v2"),
            lower_precision=True,
            one_tenant_decides=True,
            pairs_with_revision="v1",
            judge_model="big",
            state_file=tmp_path / "canary.json",
        ),
    )


def test_a_second_canary_is_rejected(tmp_path: Path) -> None:
    """At the check and at the start, with both names and the way out."""
    config = tmp_path / "hearth.yaml"
    config.write_text("canaries: [{name: a, revision: v2}, {name: b, pool: fast}]")
    fault = (
        "canaries[1]: `b`: a second canary is rejected while `a` is configured: one change at a time; remove that one "
        "when it has ended"
    )
    with pytest.raises(InvalidDocument) as at_check:
        check_file(config, {})
    with pytest.raises(InvalidDocument) as at_start:
        load_settings({}, {}, config)
    for caught in (at_check, at_start):
        assert [str(found).endswith(fault) for found in caught.value.errors] == [True]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("roles: 3", "roles: must be true or false, not a number"),
        ("roles: {switch: true}", "roles.switch: removed: delete this key"),
        ("roles: {ttft: 3}", "roles.ttft: unknown key (did you mean `ttft_s`?)"),
        ("roles: {min_improvement: 2}", "roles: min_improvement: must be between 0 and 1"),
        ("canaries: [{name: a}]", "canaries[0]: pool: name the pool or the revision on trial"),
        (
            "canaries: [{name: a, pool: p, false_rollback_rate: 0.1}]",
            "canaries[0].false_rollback_rate: renamed to `false_revert_rate`",
        ),
        (
            "canaries: [{name: a, pool: p, kind: config}]",
            "canaries[0].kind: `config` is none of release, configuration (did you mean `configuration`?)",
        ),
        ("canaries: [{name: a, pool: p, max_duration_s: 0}]", "canaries[0]: max_duration_s: must be above 0"),
        *(
            (
                f"canaries: [{{name: a, pool: p, traffic_share: {share}}}]",
                f"canaries[0]: {NO_SHARE}",
            )
            for share in (0, 1, 2)
        ),
        (
            "canaries: [{name: a, pool: p, max_tpot_ratio: 5}]",
            "canaries[0]: max_ttft_ratio, max_tpot_ratio: must be at most 3.9",
        ),
    ],
)
def test_faults_name_their_place(words: str, fault: str) -> None:
    """As everywhere."""
    assert fault in [str(each) for each in read_settings(words, {})[1].errors]
