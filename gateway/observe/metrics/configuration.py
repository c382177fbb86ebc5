"""Shows whether the configuration is in force: the last reloads, settings that need a restart, standing warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.runtime.metric_families import Family


@dataclass(slots=True)
class LastReload:
    """The last reload of one document. The start of the gateway counts as a success."""

    succeeded_at_s: float
    """Unix time of the last success."""
    is_successful: bool = True

    def note(self, at_s: float, *, is_successful: bool) -> None:
        """Note a reload."""
        self.is_successful = is_successful
        if is_successful:
            self.succeeded_at_s = at_s


class ReloadStatus(Collector):
    """The last reloads of configuration and policy. One per gateway: of several processes, the supervisor's."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self.config, self.policy = LastReload(wall_clock()), LastReload(wall_clock())
        self.needs_restart: tuple[str, ...] = ()
        """Settings of the file that differ from those that run, by the last successful reload."""

    def note_config(self, *, is_successful: bool, needs_restart: Iterable[str] | None = None) -> None:
        """Note a reload of the configuration, and what differs where it could be read."""
        self.config.note(self._wall_clock(), is_successful=is_successful)
        if needs_restart is not None:
            self.needs_restart = tuple(needs_restart)

    def note_policy(self, *, is_successful: bool) -> None:
        """Note a reload of the policy."""
        self.policy.note(self._wall_clock(), is_successful=is_successful)

    def collect(self) -> Iterator[Family]:
        """Return all metric families of this moment."""
        config, policy = self.config, self.policy
        yield GaugeMetricFamily(
            "hearth_config_last_reload_successful",
            "1 where the last reload of the configuration succeeded.",
            float(config.is_successful),
        )
        yield GaugeMetricFamily(
            "hearth_config_last_reload_success_timestamp_seconds",
            "Unix time of the last successful reload of the configuration.",
            config.succeeded_at_s,
        )
        yield GaugeMetricFamily(
            "hearth_policy_last_reload_successful",
            "1 where the last reload of the policy succeeded.",
            float(policy.is_successful),
        )
        yield GaugeMetricFamily(
            "hearth_policy_last_reload_success_timestamp_seconds",
            "Unix time of the last successful reload of the policy.",
            policy.succeeded_at_s,
        )
        restart = GaugeMetricFamily(
            "hearth_config_needs_restart", "1 for a changed setting that a reload does not apply.", labels=("setting",)
        )
        for name in self.needs_restart:
            restart.add_metric((name,), 1.0)
        yield restart


StandingWarnings = Callable[[], Iterable[tuple[str, str]]]
"""Lists the warnings whose cause lasts: the event that was logged, and its subject: a URL, a source, a cascade."""


class WarningCollector(Collector):
    """Shows the warnings whose cause lasts."""

    def __init__(self, standing: Iterable[StandingWarnings]) -> None:
        self._standing = tuple(standing)

    def collect(self) -> Iterator[Family]:
        """Return the gauge of this moment."""
        family = GaugeMetricFamily(
            "hearth_warnings",
            "1 while the condition of a warning lasts; the log line of the event names the fix.",
            labels=("event", "subject"),
        )
        for pair in dict.fromkeys(pair for standing in self._standing for pair in standing()):
            family.add_metric(pair, 1.0)
        yield family
