"""What an agent is told: flags over environment over labels, and all faults at once."""

from pathlib import Path
from typing import Any

import pytest

from agent.settings import AgentSettings, load_agent_settings
from gateway.runtime.addresses import Address
from tenancy.document import InvalidDocument

REDIS = "redis://:secret@r:6379/1"


def reported(variables: dict[str, str] | None = None, host: str = "node-7", **flags: Any) -> AgentSettings:
    return load_agent_settings({"redis": REDIS, **flags}, variables or {}, host)


def test_little_has_to_be_stated() -> None:
    """A Redis; the rest has defaults, and the machine its name."""
    settings = reported()
    assert settings.name == "node-7"
    assert settings.facts == {"host": "node-7"}
    assert settings.ports == tuple(range(8000, 8010))
    assert settings.load_listen == Address("127.0.0.1", 8126)
    assert settings.deregisters
    assert "secret" not in repr(settings)


def test_flags_win_over_environment_over_labels(tmp_path: Path) -> None:
    """Each source fills what the one before left open."""
    labels = tmp_path / "labels"
    labels.write_text('topology.kubernetes.io/zone="a"\ntopology.kubernetes.io/region="b"\nllm-d.ai/role="decode"\n')
    variables = {"HEARTH_AGENT_LABELS_FILE": str(labels), "HEARTH_AGENT_REGION": "c", "HEARTH_AGENT_POD": "http://x:1"}
    settings = reported(variables, region="d", on_stop="keep", load_listen="off", ttl="30")
    assert settings.facts == {"host": "node-7", "zone": "a", "region": "d", "role": "decode"}
    assert settings.pods == ("http://x:1",)
    assert settings.ports == ()
    assert (settings.deregisters, settings.load_listen, settings.ttl_s) == (False, None, 30.0)


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    """As Kubernetes mounts it."""
    (tmp_path / "url").write_text("redis://other:6379\n")
    settings = load_agent_settings({}, {"HEARTH_REDIS_FILE": str(tmp_path / "url")}, "n")
    assert settings.redis.hosts == (("other", 6379),)


def test_pods_may_stand_in_a_file(tmp_path: Path) -> None:
    """Several, as in their variable; and a file that is not there is named."""
    (tmp_path / "pods").write_text("http://a:1, http://b:1\n")
    assert reported({"HEARTH_AGENT_POD_FILE": str(tmp_path / "pods")}).pods == ("http://a:1", "http://b:1")
    with pytest.raises(InvalidDocument, match="HEARTH_AGENT_POD_FILE: cannot read `/nowhere`"):
        reported({"HEARTH_AGENT_POD_FILE": "/nowhere"})


def test_all_faults_are_named_at_once() -> None:
    """Each by flag or variable, as it was said."""
    with pytest.raises(InvalidDocument) as caught:
        load_agent_settings(
            {"pod": ["ftp://x"], "ports": "9-1", "ttl": "0", "role": "cook"},
            {"HEARTH_AGENT_PROBE_INTERVAL": "x"},
            "bad name",
        )
    named = [fault.path for fault in caught.value.errors]
    assert named == ["--pod", "--ports", "--ttl", "HEARTH_AGENT_PROBE_INTERVAL", "facts", "--name", "--redis"]


@pytest.mark.parametrize("ports", ["0", "1-70000", "x", "1-2-3", "1-300", ""])
def test_ports_are_few_and_real(ports: str) -> None:
    """An agent that looks everywhere would be a scanner."""
    with pytest.raises(InvalidDocument):
        reported(ports=ports)


@pytest.mark.parametrize(
    ("old", "new"), [("PROMPTS", "PROMPT_CLASS"), ("LOOK", "PROBE_INTERVAL"), ("LOADS", "LOAD_LISTEN")]
)
def test_a_variable_of_an_earlier_version_names_the_new_one(old: str, new: str) -> None:
    """Its value would otherwise be lost without a word."""
    with pytest.raises(InvalidDocument, match=f"HEARTH_AGENT_{old}: renamed to `HEARTH_AGENT_{new}`"):
        reported({f"HEARTH_AGENT_{old}": "1"})
