"""Words about roles and canaries."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.loading import check_file, load_settings
from gateway.config.settings import read_settings
from routing.canary import CanaryTerms
from routing.pairing.roles import RoleTerms
from tenancy.document import InvalidDocument


def test_roles_are_off_unless_requested() -> None:
    """True is all defaults; a mapping says what is otherwise."""
    assert read_settings("", {})[0].roles is None
    assert read_settings("roles: false", {})[0].roles is None
    assert read_settings("roles: true", {})[0].roles == RoleTerms()
    found = read_settings("roles: {ttft_s: 3, min_decode_engines: 2}", {})[0].roles
    assert found == RoleTerms(ttft_s=3.0, min_decode_engines=2)


def test_canaries_stand_in_their_order() -> None:
    """By pool, by revision."""
    settings, _ = read_settings("canaries: [{name: a, revision: v2}, {name: b, pool: fast, traffic_share: 0.1}]", {})
    assert settings.canaries == (CanaryTerms("a", revision="v2"), CanaryTerms("b", pool="fast", traffic_share=0.1))


SPLIT = """
canaries: [{name: plain, revision: v1}, {name: new, revision: v2}]
discovery:
  static:
    pods:
      - {url: "http://127.0.0.1:1", revision: v1}
      - {url: "http://127.0.0.1:2", revision: v2, role: prefill}
      - {url: "http://127.0.0.1:3", revision: v2, kv_connector: NixlConnector, kv_role: kv_consumer}
"""


def test_a_canary_of_split_pods_is_rejected(tmp_path: Path) -> None:
    """At the check and at the start, each pod by its URL and its role; a canary of whole pods is none of it."""
    config = tmp_path / "hearth.yaml"
    config.write_text(SPLIT)
    with pytest.raises(InvalidDocument) as caught:
        check_file(config, {})
    with pytest.raises(InvalidDocument) as at_start:
        load_settings({}, {}, config)
    faults = [str(fault) for fault in caught.value.errors]
    assert faults == [str(fault) for fault in at_start.value.errors]
    assert faults == [
        f"canaries[1]: `new`: {url} has role `{role}`; pods on trial must serve whole requests (role `either`)"
        for url, role in (("http://127.0.0.1:2", "prefill"), ("http://127.0.0.1:3", "decode"))
    ]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("roles: 3", "roles: must be true or false, not a number"),
        ("roles: {switch: true}", "roles.switch: removed: delete this key"),
        ("roles: {ttft: 3}", "roles.ttft: unknown key (did you mean `ttft_s`?)"),
        ("roles: {min_improvement: 2}", "roles: min_improvement: must be between 0 and 1"),
        ("canaries: [{name: a}]", "canaries[0]: pool: name the pool or the revision on trial"),
        ("canaries: [{name: a, pool: p, max_duration_s: 0}]", "canaries[0]: max_duration_s: must be above 0"),
        (
            "canaries: [{name: a, pool: p, traffic_share: 2}]",
            "canaries[0]: traffic_share, false_rollback_rate: must be between 0 and 1",
        ),
    ],
)
def test_faults_name_their_place(words: str, fault: str) -> None:
    """As everywhere."""
    assert fault in [str(each) for each in read_settings(words, {})[1].errors]
