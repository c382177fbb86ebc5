"""Metrics say whether the configuration is in force, and which warnings last."""

from prometheus_client import CollectorRegistry

from gateway.observe.metrics.configuration import ReloadStatus, WarningCollector


class Scene:
    """A status under a clock."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.status = ReloadStatus(lambda: self.now_s)
        self.registry = CollectorRegistry()
        self.registry.register(self.status)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"hearth_{name}", labels)


def test_a_failed_reload_is_seen_until_one_succeeds() -> None:
    """The time is that of the last success; the start counts as one."""
    scene = Scene()
    assert scene.value("config_last_reload_successful") == 1
    scene.now_s = 20.0
    scene.status.note_config(is_successful=False)
    assert scene.value("config_last_reload_successful") == 0
    assert scene.value("config_last_reload_success_timestamp_seconds") == 10.0
    scene.now_s = 30.0
    scene.status.note_config(is_successful=True, needs_restart=["listen"])
    assert scene.value("config_last_reload_success_timestamp_seconds") == 30.0
    assert scene.value("config_needs_restart", setting="listen") == 1
    assert scene.value("policy_last_reload_success_timestamp_seconds") == 10.0
    scene.status.note_policy(is_successful=False)
    assert scene.value("policy_last_reload_successful") == 0


def test_a_setting_that_was_put_back_needs_no_restart() -> None:
    """Each reload compares with what runs."""
    scene = Scene()
    scene.status.note_config(is_successful=True, needs_restart=["listen"])
    scene.status.note_config(is_successful=False)
    assert scene.value("config_needs_restart", setting="listen") == 1, "unreadable: what was known stays"
    scene.status.note_config(is_successful=True, needs_restart=[])
    assert scene.value("config_needs_restart", setting="listen") is None


def test_warnings_last_as_long_as_their_cause() -> None:
    """By event and subject, each once."""
    standing = [("source_empty", "dns:vllm:8000"), ("pod_never_healthy", "http://a:1")]
    registry = CollectorRegistry()
    registry.register(WarningCollector([lambda: standing, lambda: standing[:1]]))
    labels = {"event": "source_empty", "subject": "dns:vllm:8000"}
    assert registry.get_sample_value("hearth_warnings", labels) == 1
    standing.clear()
    assert registry.get_sample_value("hearth_warnings", labels) is None
