"""Flags stand above the environment, the environment above the file; what contradicts itself is refused."""

from pathlib import Path

import pytest

from gateway.config.discovery import DiscoveredPod
from gateway.config.fields import Secret
from gateway.config.flags import GivenValue
from gateway.config.loading import SETTINGS, load_settings
from gateway.config.settings import Settings
from gateway.runtime.addresses import Address
from tenancy.document import InvalidDocument


def faults(
    flags: dict[str, GivenValue] | None = None, variables: dict[str, str] | None = None, config: Path | None = None
) -> list[str]:
    with pytest.raises(InvalidDocument) as rejected:
        load_settings(flags or {}, variables or {}, config)
    return [str(fault) for fault in rejected.value.errors]


def test_flags_over_environment_over_file(tmp_path: Path) -> None:
    """Each word is taken from the highest place that says it."""
    config = tmp_path / "hearth.yaml"
    config.write_text(
        "listen: file:1\nmetrics_listen: file:2\nadmin_listen: off\nrouting: round-robin\ntimeouts: {drain_s: 7}\n"
    )
    variables = {"HEARTH_LISTEN": "env:1", "HEARTH_METRICS_LISTEN": "env:2"}
    found = load_settings({"listen": "flag:1", "routing": "least-loaded"}, variables, config)
    assert (found.listen, found.metrics_listen, found.admin_listen) == (Address("flag", 1), Address("env", 2), None)
    assert found.routing.name == "least-loaded"
    assert found.timeouts.drain_s == 7


def test_nothing_set_is_the_defaults() -> None:
    """No flag, no variable, no file."""
    assert load_settings({}, {}, None) == Settings()


def test_pods_may_be_many() -> None:
    """Repeated on the command line, listed in the environment, each pod once."""
    one, other, third = (DiscoveredPod(f"http://{name}:1") for name in "abc")
    assert load_settings({"pod": ["http://a:1", "http://b:1", "http://a:1/"]}, {}, None).pods == (one, other)
    assert load_settings({}, {"HEARTH_POD": "http://a:1, http://b:1 http://c:1"}, None).pods == (one, other, third)


def test_secrets_come_by_file(tmp_path: Path) -> None:
    """`_FILE` names the file that holds them; the variable itself stands above it."""
    path = tmp_path / "token"
    path.write_text("from-file\n")
    variables = {"HEARTH_ADMIN_TOKEN_FILE": str(path), "HEARTH_POD_API_KEY": "sk-1"}
    found = load_settings({}, variables, None)
    assert (found.admin_token, found.pod_api_key) == (Secret("from-file"), Secret("sk-1"))
    assert load_settings({}, variables | {"HEARTH_ADMIN_TOKEN": "direct"}, None).admin_token == Secret("direct")
    assert faults(variables={"HEARTH_REDIS_FILE": "/nowhere"}) == ["HEARTH_REDIS_FILE: cannot read `/nowhere`"]


@pytest.mark.parametrize("name", ["METRICS", "ADMIN", "EXTPROC"])
def test_a_variable_of_an_earlier_version_is_rejected_with_its_new_name(name: str) -> None:
    """It has no effect any more: a port that was off would be open without a word."""
    assert faults(variables={f"HEARTH_{name}": "off"}) == [f"HEARTH_{name}: renamed to `HEARTH_{name}_LISTEN`"]


def test_secrets_are_no_flags() -> None:
    """A command line is seen by every user of the machine; the Redis URL may stand there, as it need hold no secret."""
    assert {word.name for word in SETTINGS if word.allows_file and word.has_flag} == {"redis"}


def test_tls_wants_both_files(tmp_path: Path) -> None:
    """One alone is a fault; one by flag may complete the other in the environment."""
    cert, key = tmp_path / "c", tmp_path / "k"
    cert.write_text("x")
    key.write_text("x")
    assert faults({"tls_cert": str(cert)}) == ["--tls-key: is missing: TLS needs a certificate and its key"]
    found = load_settings({"tls_cert": str(cert)}, {"HEARTH_TLS_KEY": str(key)}, None)
    assert found.tls is not None
    assert (found.tls.cert, found.tls.key) == (cert, key)


def test_the_admin_port_wants_a_token_beyond_loopback() -> None:
    """Wherever the address came from; with a token it may stand open."""
    assert faults({"admin_listen": "0.0.0.0:9091"}) == [
        (
            "admin_listen: 0.0.0.0:9091 can be reached from outside: "
            "set HEARTH_ADMIN_TOKEN (or _FILE), or listen on loopback"
        )
    ]
    assert load_settings({"admin_listen": "0.0.0.0:9091"}, {"HEARTH_ADMIN_TOKEN": "t"}, None).admin_token


def test_two_ports_cannot_share_an_address() -> None:
    """But any number of them may let the system choose."""
    assert faults({"listen": "127.0.0.1:9464"}) == ["metrics_listen: 127.0.0.1:9464 is taken by listen"]
    load_settings({"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}, {}, None)


def test_the_number_of_gateways_may_stand_beside_a_redis() -> None:
    """A flag or variable may add a Redis to a file that has the number: it is not used then."""
    assert load_settings({"gateways": "4"}, {}, None).gateways == 4
    assert load_settings({}, {"HEARTH_GATEWAYS": "2"}, None).gateways == 2
    assert faults({"gateways": "0"}) == ["--gateways: must be from 1 to 256, not 0"]
    assert load_settings({"gateways": "4", "redis": "redis://127.0.0.1:9"}, {}, None).redis is not None


def test_all_faults_of_all_places_are_reported_at_once(tmp_path: Path) -> None:
    """Each with the place where it stands."""
    config = tmp_path / "hearth.yaml"
    config.write_text("listn: x\n")
    assert faults({"pod": ["pod"]}, {"HEARTH_ROUTING": "cold"}, config) == [
        f"{config}: listn: unknown key (did you mean `listen`?)",
        "--pod: must be a URL beginning with http:// or https://: `pod`",
        "HEARTH_ROUTING: `cold` is none of warm, round-robin, least-loaded",
    ]


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    """Missing, or no text."""
    assert faults(config=tmp_path / "nowhere.yaml") == [f"{tmp_path}/nowhere.yaml: No such file or directory"]
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe")
    assert faults(config=binary) == [f"{binary}: is not UTF-8 text"]
