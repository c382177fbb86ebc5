"""The settings can be looked at, secrets excepted."""

import json
from pathlib import Path

from gateway.config.fields import Secret
from gateway.config.models import ModelEntry
from gateway.config.settings import Settings, show_settings
from gateway.runtime.addresses import TlsFiles


def test_everything_shows_but_secrets() -> None:
    """As JSON, with the scorers' parameters."""
    settings = Settings(
        admin_token=Secret("hunter2"),
        redis=Secret("redis://:hunter2@h"),
        pod_api_key=Secret("hunter2"),
        models=(ModelEntry("a", 1e-6),),
        tls=TlsFiles(Path("c.pem"), Path("k.pem")),
    )
    shown = json.dumps(show_settings(settings))
    assert "hunter2" not in shown
    found = json.loads(shown)
    assert found["admin_token"] == found["redis"] == found["pod_api_key"] == "***"
    assert found["listen"] == "127.0.0.1:8000"
    assert found["routing"]["scorers"]["session_affinity"]["tie_break_s"] > 0
    assert [(entry["name"], entry["input_cost_per_token"]) for entry in found["models"]] == [("a", 1e-6)]
    assert found["tls"] == {"cert": "c.pem", "key": "k.pem"}
    assert found["timeouts"]["drain_s"] == 30.0
