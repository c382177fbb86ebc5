"""The compose file's gateway is configured as the gateway reads it, and everything in it is kept small in rights."""

from pathlib import Path

from gateway.config.settings import read_settings
from gateway.identity.policy import load_policy
from tests.deploy.files import DEPLOY, documents

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
