"""What a reload puts in force, and what it reports of the rest: against what runs, not against the last file."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from gateway.app.reload import effective_settings, needs_restart
from gateway.config.settings import Settings, read_settings
from gateway.runtime.addresses import TlsFiles
from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.running import Running, serving


async def reloaded(gateway: Running, session: aiohttp.ClientSession) -> list[str]:
    async with session.post(gateway.at("admin", "/reload")) as answer:
        assert answer.status == 200
        return sorted((await answer.json())["needs_restart"])


async def configured(gateway: Running, session: aiohttp.ClientSession) -> tuple[float, str]:
    async with session.get(gateway.at("admin", "/config")) as answer:
        shown = await answer.json()
        return shown["timeouts"]["drain_s"], shown["log_level"]


async def shown(gateway: Running, session: aiohttp.ClientSession) -> dict[str, float]:
    """The metrics of reloads but for their times."""
    async with session.get(gateway.at("metrics", "/metrics")) as answer:
        lines = (line.split(" ") for line in (await answer.text()).splitlines())
        found = {line[0]: float(line[1]) for line in lines if line[0].startswith("hearth_config_")}
    names = {name.removeprefix("hearth_config_"): value for name, value in found.items()}
    return {
        name.replace('{setting="', " ").removesuffix('"}'): value
        for name, value in names.items()
        if not name.endswith("seconds")
    }


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=["one process", "two workers"])
async def test_what_needs_a_restart_is_reported_until_it_is_restarted(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """A second reload of the same file reports the same; `/config` shows what runs; the old file needs nothing."""
    config = tmp_path / "hearth.yaml"
    config.write_text("timeouts: {drain_s: 7}\nlog: {level: info}\n")
    async with (
        SimulatedPod(Options(models=("tiny",))) as pod,
        serving("--pod", pod.url, "--config", str(config), *flags) as gateway,
        aiohttp.ClientSession() as session,
    ):
        config.write_text("timeouts: {drain_s: 1}\nlog: {level: debug}\n")
        assert [await reloaded(gateway, session) for _ in range(3)] == [["timeouts"]] * 3
        assert await shown(gateway, session) == {"last_reload_successful": 1, "needs_restart timeouts": 1}
        assert await configured(gateway, session) == (7.0, "debug")
        config.write_text("timeouts: {drain_s: 7}\nlog: {level: info}\n")
        assert await reloaded(gateway, session) == []
        assert await shown(gateway, session) == {"last_reload_successful": 1}
        config.write_text("timeouts: {drain_s: no}\n")
        async with session.post(gateway.at("admin", "/reload")) as answer:
            assert answer.status == 422
        assert await shown(gateway, session) == {"last_reload_successful": 0}
        assert await configured(gateway, session) == (7.0, "info")


def test_tls_that_was_not_there_at_the_start_is_not_in_force() -> None:
    """Files of a certificate change while it runs; whether there is one does not."""
    old, new = TlsFiles(Path("old.crt"), Path("old.key")), TlsFiles(Path("new.crt"), Path("new.key"))
    for before, after, runs in ((old, new, new), (None, new, None), (old, None, old)):
        was, comes = Settings(tls=before), Settings(tls=after)
        assert effective_settings(was, comes).tls == runs
        assert needs_restart(was, comes) == ([] if runs == after else ["tls"])


def test_only_live_settings_change() -> None:
    """Pods and the log level are those of the new file, routing is that of the start."""
    old, _ = read_settings("routing: warm\nlog: {level: info}", {})
    new, _ = read_settings("routing: round-robin\nlog: {level: debug}\ndiscovery: {static: {pods: ['http://a:1']}}", {})
    runs = effective_settings(old, new)
    assert (runs.routing, runs.log_level, runs.configured_pods) == (old.routing, "debug", new.configured_pods)
    assert needs_restart(runs, new) == ["routing"]
