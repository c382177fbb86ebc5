"""What a user gets who installs the wheel instead of cloning: the same command, from a clean environment.

The wheel is built and installed with whatever index the machine's pip is set to; the pins are the project's own.
"""

import json
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.sources import ROOT, SHIPPED

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]

# To be removed with the first version of the command.
needs_command = pytest.mark.skipif(find_spec("gateway.cli") is None, reason="gateway.cli is not written yet")

CONFIGURATION = """
listen: 127.0.0.1:8000
metrics_listen: 127.0.0.1:9464
admin_listen: 127.0.0.1:9091
"""

MADE_OF_EXTRAS = ("gateway.discovery.dns", "gateway.tracing.otlp", "gateway.tracing.tracing")
"""Modules that need an extra."""

IMPORT_ALL = f"""
import importlib, pkgutil, sys
for folder in sys.argv[1:]:
    package = importlib.import_module(folder)
    for module in pkgutil.walk_packages(package.__path__, folder + "."):
        if not module.name.endswith("__main__") and module.name not in {MADE_OF_EXTRAS}:
            importlib.import_module(module.name)
print(package.__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that must succeed; if it does not, all that it said is in the failure."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel and what it asks for, and nothing else."""
    home = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", home, cwd=home)
    python = home / "bin" / "python"
    install: Sequence[str | Path] = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(python, *install, "--constraint", ROOT / "constraints.txt", wheel, cwd=home)
    return python.parent


def test_the_wheel_holds_what_ships_and_no_more(wheel: Path) -> None:
    """Packages with py.typed and the licence are in it; tests and bench are not."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    folders = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert folders == set(SHIPPED)
    assert {f"{folder}/py.typed" for folder in SHIPPED} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


@needs_command
def test_the_wheel_installs_and_names_its_version(clean: Path, tmp_path: Path) -> None:
    """`hearth --version` runs from the clean environment and says what pyproject.toml says."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert version in run(clean / "hearth", "--version", cwd=tmp_path)


@needs_command
def test_the_installed_command_checks_a_configuration(clean: Path, tmp_path: Path) -> None:
    """`hearth config check` accepts a good file and names the fault of a bad one."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(CONFIGURATION, encoding="utf-8")
    bad.write_text(CONFIGURATION.replace("listen", "lisen"), encoding="utf-8")
    run(clean / "hearth", "config", "check", good, cwd=tmp_path)
    rejected = subprocess.run([clean / "hearth", "config", "check", bad], capture_output=True, text=True, check=False)
    assert rejected.returncode > 0
    assert "lisen" in rejected.stdout + rejected.stderr


def test_the_installed_demo_needs_nothing_else(clean: Path, tmp_path: Path) -> None:
    """`hearth demo` compares two routings from the clean environment; without the extra it says what has no picture."""
    rows = [{"timestamp": 500 * n, "input_length": 2048, "output_length": 4, "hash_ids": [1, 2, n]} for n in range(8)]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shown = run(clean / "hearth", "demo", "--trace", "trace.jsonl", cwd=tmp_path)
    assert {"round-robin", "warm"} <= {line.partition(" ")[0] for line in shown.splitlines()}
    assert "no picture" in shown
    assert "Next: hearth demo --keep" in shown


def test_the_installed_pod_and_configuration_work_together(clean: Path, tmp_path: Path) -> None:
    """`hearth init` names a `hearth pod`, and the written file passes its check."""
    with subprocess.Popen([clean / "hearth", "pod"], stdout=subprocess.PIPE, text=True) as pod:
        assert pod.stdout is not None
        url = pod.stdout.readline().strip()
        run(clean / "hearth", "init", "--pod", url, "--listen", "127.0.0.1:0", "--auth", cwd=tmp_path)
        assert "ok" in run(clean / "hearth", "config", "check", "hearth.yaml", cwd=tmp_path)
        pod.send_signal(signal.SIGTERM)
    assert pod.returncode == 0


def test_every_module_imports_without_the_extras(clean: Path, tmp_path: Path) -> None:
    """What an extra brings is imported where it is used, so that everything else works without it."""
    place = run(clean / "python", "-c", IMPORT_ALL, *SHIPPED, cwd=tmp_path).strip()
    assert Path(place).is_relative_to(clean.parent)
