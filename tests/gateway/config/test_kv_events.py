"""The section `kv_events` of a configuration."""

import pytest

from gateway.config.kv_events import KvEventsConfig, KvEventSource, KvLoadTimes
from gateway.config.settings import Settings, read_settings


def settings(source: str) -> Settings:
    found, root = read_settings(source, {})
    assert not root.errors, list(map(str, root.errors))
    return found


def faults(source: str) -> list[str]:
    return [str(fault) for fault in read_settings(source, {})[1].errors]


def test_precise_index_is_off_until_it_is_requested() -> None:
    """Absent and false are the same; true is all defaults."""
    assert settings("").kv_events is None
    assert settings("kv_events: false").kv_events is None
    assert settings("kv_events: true").kv_events == KvEventsConfig()
    assert settings("kv_events: {}").kv_events == KvEventsConfig()


def test_every_field_is_read() -> None:
    """Waiting, bounds, media and sources."""
    found = settings(
        """
kv_events:
  max_wait_s: 0.005
  max_blocks_per_engine: 1000
  load_s_per_token: {cpu: 3e-6}
  sources:
    - {pod: "http://a:8000", endpoint: "tcp://*:5557"}
    - {pod: "http://b:8000", endpoint: "ipc:///run/kv", replay_endpoint: "tcp://b:5558", topic: kv}
"""
    )
    sources = (
        KvEventSource("http://a:8000", "tcp://*:5557"),
        KvEventSource("http://b:8000", "ipc:///run/kv", "tcp://b:5558", "kv"),
    )
    assert found.kv_events == KvEventsConfig(0.005, 1000, KvLoadTimes(cpu=3e-6), sources)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("kv_events: 3", "kv_events: must be true or false, not a number"),
        ("kv_events: {max_wait: 3}", "kv_events.max_wait: unknown key (did you mean `max_wait_s`?)"),
        ("kv_events: {max_blocks_per_engine: 0}", "kv_events.max_blocks_per_engine: must be above 0"),
        (
            'kv_events: {sources: [{pod: "http://a:1", endpoint: "http://a:5"}]}',
            "kv_events.sources[0].endpoint: must be tcp://HOST:PORT or ipc://PATH, not `http://a:5`",
        ),
        ("kv_events: {sources: [{}]}", "kv_events.sources[0].pod: is missing"),
        (
            "model_list: [{model_name: m, tokenizer: pod}]",
            "model_list[0].tokenizer: removed: token IDs come from the pods' own /tokenize; delete this key",
        ),
        (
            "model_list: [{model_name: m, chat_template: chat.jinja}]",
            "model_list[0].chat_template: removed: token IDs come from the pods' own /tokenize; delete this key",
        ),
        (
            "kv_events: {tokenizer_cache_mb: 16}",
            "kv_events.tokenizer_cache_mb: removed: token IDs come from the pods' own /tokenize; delete this key",
        ),
    ],
)
def test_faults_are_reported_with_their_path(source: str, fault: str) -> None:
    """Each wrong word, where it stands and why."""
    assert fault in faults(source)
