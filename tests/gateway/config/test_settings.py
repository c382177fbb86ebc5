"""The configuration file says all that flags say and more, and every fault in it is told with its path."""

from pathlib import Path

import pytest

from gateway.config.discovery import DiscoveredPod
from gateway.config.fields import Secret
from gateway.config.models import ModelEntry
from gateway.config.settings import Settings, read_settings
from gateway.runtime.addresses import Address
from routing.facts import PodFacts
from scorers.interference import Interference
from scorers.prefill_time import PrefillTime
from scorers.registry import SCORERS, routings
from scorers.round_robin import RoundRobin
from scorers.session_affinity import SessionAffinity


def settings(source: str, **variables: str) -> Settings:
    found, root = read_settings(source, variables)
    assert not root.errors, list(map(str, root.errors))
    return found


def faults(source: str) -> list[str]:
    return [str(fault) for fault in read_settings(source, {})[1].errors]


def test_an_empty_file_is_the_defaults() -> None:
    """And the defaults are loopback, all three ports."""
    found = settings("")
    assert found == Settings()
    assert [str(where) for where in (found.listen, found.metrics_listen, found.admin_listen)] == [
        "127.0.0.1:8000",
        "127.0.0.1:9464",
        "127.0.0.1:9091",
    ]


def test_every_field_is_read(tmp_path: Path) -> None:
    """Ports, discovery, models with prices, limits, times, secrets and files."""
    for name in ("policy.yaml", "pods.yaml", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("x")
    (tmp_path / "token").write_text("t0ken\n")
    found = settings(
        f"""
listen: 0.0.0.0:8000
processes: 4
metrics_listen: off
admin_listen: "[::]:9091"
admin_token_file: {tmp_path}/token
policy: {tmp_path}/policy.yaml
redis: ${{REDIS}}
trusted_proxies: [10.0.0.0/8]
pod_api_key: sk-pods
usage_log: {tmp_path}/usage.jsonl
log: {{level: warning}}
tls: {{cert: {tmp_path}/cert.pem, key: {tmp_path}/key.pem}}
limits: {{max_body_bytes: 1048576}}
timeouts: {{drain_s: 2.5, upstream_connect_s: 1}}
discovery:
  static: {{pods: [http://a:1, http://b:1/, http://a:1]}}
  file: {{path: {tmp_path}/pods.yaml}}
model_list:
  - {{model_name: small, input_cost_per_token: 2e-7, output_cost_per_token: 6.0e-7, cache_read_input_token_cost: 1e-8}}
  - {{model_name: big, pods: [http://c:1], scheduling_policy: priority}}
""",
        REDIS="redis://u:p@h:6379",
    )
    assert (found.listen, found.metrics_listen, found.admin_listen) == (
        Address("0.0.0.0", 8000),
        None,
        Address("::", 9091),
    )
    assert found.processes == 4
    assert (found.admin_token, found.pod_api_key, found.redis) == (
        Secret("t0ken"),
        Secret("sk-pods"),
        Secret("redis://u:p@h:6379"),
    )
    assert found.models == (
        ModelEntry("small", 2e-7, 6e-7, 1e-8),
        ModelEntry("big", pods=("http://c:1",), takes_priority=True),
    )
    assert [pod.url for pod in found.configured_pods] == ["http://a:1", "http://b:1", "http://c:1"]
    assert found.pod_file == tmp_path / "pods.yaml"
    assert (found.limits.max_body_bytes, found.limits.max_headers) == (1 << 20, Settings().limits.max_headers)
    assert (found.timeouts.drain_s, found.timeouts.upstream_connect_s) == (2.5, 1.0)
    assert (found.log_level, found.policy, found.usage_log) == (
        "warning",
        tmp_path / "policy.yaml",
        tmp_path / "usage.jsonl",
    )
    assert found.tls is not None


def test_a_pod_keeps_its_facts_where_a_model_names_it_too() -> None:
    """Its region must not be lost because its URL stands a second time."""
    found = settings(
        """
discovery: {static: {pods: [http://a:1, {url: http://b:1, region: eu}]}}
model_list: [{model_name: m, pods: [http://b:1, http://c:1]}]
"""
    )
    assert found.configured_pods == (
        DiscoveredPod("http://a:1"),
        DiscoveredPod("http://b:1", facts=PodFacts(region="eu")),
        DiscoveredPod("http://c:1"),
    )


def test_a_routing_is_a_name_or_its_scorers() -> None:
    """A scorer's fields are its parameters; what is not named stays, and `off` takes out."""
    assert settings("routing: round-robin").routing.scorers == routings()["round-robin"]
    assert settings("routing: {name: least-loaded}").routing.name == "least-loaded"
    custom = settings(
        "routing: {name: warm, scorers: {session_affinity: {tie_break_s: 0.01}, interference: off, round_robin: {}}}"
    ).routing
    kept = [scorer for scorer in routings()["warm"] if not isinstance(scorer, Interference | SessionAffinity)]
    assert set(custom.scorers) == {*kept, SessionAffinity(tie_break_s=0.01), RoundRobin()}
    assert settings("routing: {max_blocks_per_engine: 1000}").routing.max_blocks_per_engine == 1000
    assert settings("routing: {scorers: {prefill_time: }}").routing.scorers == routings()["warm"]
    assert settings("routing: {name: round-robin, scorers: {prefill_time: {}}}").routing.scorers == (
        PrefillTime(),
        RoundRobin(),
    )


def test_every_fault_is_reported_at_once() -> None:
    """With its path, in the order of reading."""
    source = """
lisen: a:1
metrics_listen: 9464
limits: {max_body_bytes: 0, max_headrs: 5}
timeouts: {drain_s: soon}
discovery: {static: {pods: [pod]}, file: {}}
routing: {name: warn, scorers: {sesion_affinity: {}, lora_affinity: {load: 1}}}
tls: {cert: /nowhere.pem}
model_list:
  - {model_name: a, input_cost_per_token: -1}
  - {model_name: a, pods: []}
  - {input_cost_per_token: cheap}
"""
    known = ", ".join(scorer.name for scorer in SCORERS)
    assert faults(source) == [
        "metrics_listen: must be a text, not a number (quote it)",
        "model_list[0].input_cost_per_token: must not be below 0",
        "model_list[1].pods: must name a pod; leave it out to use all pods that serve the model",
        "model_list[1].model_name: duplicate entry `a`",
        "model_list[2].model_name: is missing",
        "model_list[2].input_cost_per_token: must be a number, not 'cheap'",
        "routing.name: `warn` is none of warm, round-robin, least-loaded (did you mean `warm`?)",
        "routing.scorers.lora_affinity.load: unknown key (did you mean `load_s`?)",
        f"routing.scorers.sesion_affinity: `sesion_affinity` is none of {known} (did you mean `session_affinity`?)",
        "tls.cert: there is no file `/nowhere.pem`",
        "tls.key: is missing",
        "limits.max_body_bytes: must be above 0",
        "limits.max_headrs: unknown key (did you mean `max_headers`?)",
        "timeouts.drain_s: must be a number, not 'soon'",
        "discovery.static.pods[0]: must be a URL beginning with http:// or https://: `pod`",
        "discovery.file.path: is missing",
        "lisen: unknown key (did you mean `listen`?)",
    ]


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("model_list: [{model_name: a, aliases: [b]}]", "model_list[0].aliases"),
    ],
)
def test_words_of_later_versions_are_rejected(source: str, path: str) -> None:
    """A setting that does nothing would be believed in."""
    assert faults(source) == [f"{path}: not supported by this version"]


def test_a_secret_is_given_once(tmp_path: Path) -> None:
    """In place or by file, not both."""
    (tmp_path / "token").write_text("b")
    assert faults(f"admin_token: a\nadmin_token_file: {tmp_path}/token") == [
        "admin_token_file: conflicts with admin_token; set only one"
    ]
