"""The compose file's gateway is configured as the gateway reads it, and everything in it is kept small in rights."""

import json
from pathlib import Path

from gateway.config.settings import read_settings
from gateway.identity.policy import load_policy
from tests.deploy.files import DEPLOY, documents
from tests.deploy.grafana import faults

COMPOSE = DEPLOY / "compose"


def test_its_configuration_and_policy_are_right(tmp_path: Path) -> None:
    """The files that are mounted say nothing that the gateway would refuse."""
    text = (COMPOSE / "hearth.yaml").read_text().replace("/etc/hearth", str(COMPOSE))
    settings, root = read_settings(text, {})
    assert not root.errors, root.errors
    policy = load_policy(settings, {})
    assert policy is not None
    assert "try" in policy.tenants


def test_services_have_few_rights_and_open_few_ports() -> None:
    """No capabilities but those that an image's own start needs, no new privileges, ports on the loopback only."""
    for name, service in documents(COMPOSE / "compose.yaml")[0]["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name


def test_files_that_are_mounted_are_there() -> None:
    """A bind mount of a file that is not there makes a folder of it."""
    for service in documents(COMPOSE / "compose.yaml")[0]["services"].values():
        for volume in service.get("volumes", ()):
            if isinstance(volume, dict):
                assert (COMPOSE / volume["source"]).exists()


def test_prometheus_scrapes_the_gateway() -> None:
    """By the service's name and the port of its metrics."""
    (config,) = documents(DEPLOY / "prometheus" / "prometheus.yaml")
    targets = [target for job in config["scrape_configs"] for one in job["static_configs"] for target in one["targets"]]
    assert "hearth:9464" in targets


def test_prometheus_loads_every_file_of_rules_and_no_other() -> None:
    """The patterns fit the files with groups beside the configuration; tests of rules are none of them."""
    folder = DEPLOY / "prometheus"
    (config,) = documents(folder / "prometheus.yaml")
    loaded = {path for pattern in config["rule_files"] for path in folder.glob(pattern)}
    rules = {path for path in folder.rglob("*.yaml") if "groups" in documents(path)[0]}
    assert loaded == rules


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    """Provisioning names the services and the folder that the compose file mounts."""
    services = documents(COMPOSE / "compose.yaml")[0]["services"]
    folder = DEPLOY / "grafana" / "provisioning"
    (source,) = documents(folder / "datasources" / "prometheus.yaml")[0]["datasources"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert host in services
    assert any(entry.endswith(f":{port}") for entry in services[host]["ports"])
    (provider,) = documents(folder / "dashboards" / "hearth.yaml")[0]["providers"]
    mounts = {volume["target"] for volume in services["grafana"]["volumes"] if isinstance(volume, dict)}
    assert provider["options"]["path"] in mounts
    assert list(faults(DEPLOY / "grafana")) == []


def test_a_planted_fault_in_a_dashboard_is_found(tmp_path: Path) -> None:
    """A panel beyond the grid, a numeric id, and two dashboards of one uid."""
    panel = {"id": 1, "type": "stat", "title": "A", "gridPos": {"h": 4, "w": 6, "x": 0, "y": 0}}
    good = {"uid": "a", "title": "A", "schemaVersion": 41, "panels": [panel]}
    (tmp_path / "a.json").write_text(json.dumps(good))
    assert list(faults(tmp_path)) == []
    wide = panel | {"gridPos": {"h": 4, "w": 30, "x": 0, "y": 0}}
    (tmp_path / "b.json").write_text(json.dumps(good | {"id": 7, "panels": [wide]}))
    found = list(faults(tmp_path))
    assert any("$.id" in fault for fault in found)
    assert any("30" in fault for fault in found)
    assert any("has the uid" in fault for fault in found)
