"""The modes that are compared: each is a file of deploy/envoy, changed where a mode has no file of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.envoy import Bootstrap, bootstrap

ROOT = Path(__file__).parents[2]
PLAIN, HEADERS, BUFFERED, DUPLEX, BOTH, OBSERVED = "plain", "headers", "buffered", "duplex", "both", "observed"


@dataclass(frozen=True, slots=True)
class Mode:
    """How Envoy talks to its picker."""

    key: str
    label: str
    file: str
    change: Callable[[Bootstrap], None]

    def config(self, pickers: Sequence[str], pods: Sequence[str], *, logs_to_picker: bool) -> Bootstrap:
        """Envoy's configuration. Without health checks and its own log, which would cost alike everywhere.

        `logs_to_picker`: whether the picker receives how requests ended, which ours needs and a bare one does not.
        """
        config = bootstrap(ROOT / "deploy" / "envoy" / f"{self.file}.yaml", pickers, pods)
        self.change(config)
        for cluster in config["static_resources"]["clusters"]:
            cluster.pop("health_checks", None)
        front = _front(config)
        front["access_log"] = [log for log in front["access_log"] if logs_to_picker and "http_grpc" in log["name"]]
        return config


def modes() -> list[Mode]:
    """Without a picker first, then from cheap to dear."""
    return [
        Mode(PLAIN, "Envoy alone", "gie", _without_picker),
        Mode(HEADERS, "headers only (GET /v1/models)", "own", lambda _: None),
        Mode(BUFFERED, "BUFFERED (own.yaml)", "own", lambda _: None),
        Mode(OBSERVED, "observed (observed.yaml)", "observed", lambda _: None),
        Mode(DUPLEX, "full duplex request", "gie", lambda config: _set(config, response_body_mode="NONE")),
        Mode(BOTH, "full duplex both ways (gie.yaml)", "gie", lambda _: None),
    ]


def _set(config: Bootstrap, **modes: str) -> None:
    front = _front(config)
    front["http_filters"][0]["typed_config"]["processing_mode"].update(modes)
    if "response_body_mode" in modes:
        front["http_filters"][0]["typed_config"]["processing_mode"]["response_trailer_mode"] = "SKIP"


def _without_picker(config: Bootstrap) -> None:
    """Round robin over the pods, which is what the pool's fallback is."""
    front = _front(config)
    front["http_filters"] = front["http_filters"][-1:]
    front["access_log"] = []
    clusters = config["static_resources"]["clusters"]
    config["static_resources"]["clusters"] = [one for one in clusters if one["name"] == "pods"]


def _front(config: Bootstrap) -> Any:
    """The HTTP connection manager."""
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
