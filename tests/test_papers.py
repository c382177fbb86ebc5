"""What the papers show can be used as it stands there, and what they name is there."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from agent.command import make_parser as make_agent_parser
from cascade.calibration.labelled_file import read_labelled
from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
)
from cascade.calibration_json import read_calibration_file, write_calibration_file
from gateway.cli import make_parser
from gateway.commands.check import find_config_errors
from gateway.config.limits import Limits, Timeouts
from gateway.config.settings import Settings, config_schema, read_settings
from routing.retries import RetryTerms
from routing.stall_detection import StallBounds
from simulator.command import make_parser as make_simulate_parser
from simulator.demo import make_parser as make_demo_parser
from simulator.pod import make_parser as make_pod_parser
from simulator.profiling.command import make_parser as make_profile_parser
from simulator.shadow import make_parser as make_shadow_parser
from tenancy.document import load_yaml
from tenancy.policy import HeaderRules, InlineFiles
from tenancy.reading.fields import HEADERS, JWT, KEY, QUOTA, TENANT, TIER
from tenancy.reading.policy import read_policy
from tenancy.report.policy_schema import policy_schema
from tests.gateway.runtime.test_tls import make_certificate
from tests.generated import TABLES, pages
from tests.reference import page
from tests.sources import ROOT, SHIPPED

PAPERS = (*(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")), *ROOT.glob("docs/*.md"))

VARIABLES = {
    "ADMIN_TOKEN": "told by nobody, and long enough",
    "HEARTH_REDIS_URL": "redis://redis:6379",
    "ACME_KEY": "sk-acme",
}
"""What the examples take from the environment."""

MISSING = re.compile(r"there is no file|its folder does not exist|folder `[^`]+` does not exist")
"""What is wrong with an example on a machine that does not have the files it names."""

POLICY = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")


def examples(text: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)


def test_the_policy_to_start_from_is_one() -> None:
    """For the reader and for editors."""
    (example,) = examples(POLICY)
    found = read_policy(example, {}, InlineFiles())
    assert set(found.tiers) == {"gold", "silver", "bronze", "batch"}
    assert found.tenants["nightly"].quota.parallel_requests is None
    assert list(Draft202012Validator(policy_schema()).iter_errors(yaml.safe_load(example))) == []


@pytest.mark.parametrize("words", [QUOTA, TENANT, TIER, JWT, KEY, HEADERS], ids=lambda words: next(iter(words)))
def test_every_field_of_a_policy_is_explained(words: dict[str, object]) -> None:
    """And every header that is believed without being named."""
    assert [word for word in words if f"`{word}`" not in POLICY and f"{word}: " not in POLICY] == []
    assert [name for name in HeaderRules().names if f"`{name}`" not in POLICY] == []


def configurations() -> Iterator[tuple[Path, str]]:
    """All examples in which nothing stands but words of a configuration."""
    words = set(config_schema()["properties"])
    for paper in PAPERS:
        for example in examples(paper.read_text(encoding="utf-8")):
            if words.issuperset(yaml.safe_load(example)):
                yield paper, example


def test_every_configuration_is_one() -> None:
    """For the reader, but for the files that it names, and for editors."""
    schema, found = Draft202012Validator(config_schema()), list(configurations())
    assert len(found) > 12
    for paper, example in found:
        _, table = read_settings(example, VARIABLES)
        faults = [str(fault) for fault in table.errors]
        assert [fault for fault in faults if not MISSING.search(fault)] == [], paper.name
        assert list(schema.iter_errors(yaml.safe_load(example))) == [], paper.name


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that an example names, beside which the examples are put."""
    folder = tmp_path_factory.mktemp("etc")
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates")
    files = make_certificate(folder, "hearth.example")
    shutil.copy(files.cert, folder / "tls.crt")
    shutil.copy(files.key, folder / "tls.key")
    shutil.copy(files.cert, folder / "envoy-ca.crt")
    (folder / "keys").mkdir()
    for name in ("pod.key", "token", "extproc.token", "ca.crt"):
        (folder / name).write_text("something")
    (folder / "otlp.headers").write_text("authorization: Bearer something")
    (folder / "pods.yaml").write_text("[http://10.0.0.9:8000]")
    (example,) = examples(POLICY)
    (folder / "policy.yaml").write_text(example.replace("/etc/hearth/", ""))
    return folder


FOLDERS = re.compile(r"(?<![\w.])/(etc/hearth|var/log/hearth|var/lib/hearth)/")
"""Where the examples have their files; here all are beside the example."""


@pytest.mark.parametrize(("paper", "example"), [(paper.stem, example) for paper, example in configurations()])
def test_every_configuration_passes_its_check(machine: Path, paper: str, example: str) -> None:
    """`hearth config check`, with the files that it names: policy, certificates, pods, calibration."""
    for model in yaml.safe_load(example).get("model_list", ()):
        if "calibration" in model.get("cascade", ()):
            rungs = tuple(model["cascade"]["models"])
            cuts = tuple(AcceptanceThreshold(rung, ANY_BUCKET, 0.5) for rung in range(len(rungs) - 1))
            made = CalibrationFile(rungs, "margin", SignalStage.WINDOW, PROMISE, EVIDENCE, cuts, is_promised=True)
            (machine / "qwen-auto.json").write_bytes(write_calibration_file(made))
    config = machine / "hearth.yaml"
    config.write_text(FOLDERS.sub("", example))
    assert [str(fault) for fault in find_config_errors(config, VARIABLES) if not LIBRARY.search(str(fault))] == [], (
        paper
    )


LIBRARY = re.compile(r"needs a library|pip install")
"""A fault of the machine, not of the example."""

PROMISE, EVIDENCE = QualityGuarantee(0.01, 0.95), CalibrationEvidence(1000, "sha256:00", 0.004, 0.4, 0.6, 1.0)


def test_every_yaml_example_is_of_a_known_kind() -> None:
    """A configuration, the policy, an object of Kubernetes, or a part of Envoy's configuration (`tests/envoy` runs
    those): what is of no kind would be run by no test.
    """
    of_envoy = {"transport_socket", "initial_metadata"}
    of_config = set(config_schema()["properties"])
    of_policy = set(policy_schema()["properties"])
    for paper in PAPERS:
        for example in examples(paper.read_text(encoding="utf-8")):
            words = set(load_yaml(example))
            assert words <= of_config or words <= of_policy or "apiVersion" in words or words <= of_envoy, (
                paper.name,
                sorted(words),
            )


def test_every_json_example_is_json() -> None:
    """A whole value, or the members of one."""
    found = 0
    for paper in PAPERS:
        for example in re.findall(r"```json\n(.*?)```", paper.read_text(encoding="utf-8"), re.DOTALL):
            found += 1
            json.loads(example if example.startswith("{") else f"{{{example}}}")
    assert found > 2


def test_the_calibration_shown_can_be_read() -> None:
    """By the reader of a ladder's file, its label line by the reader of labels."""
    text = (ROOT / "docs" / "cascade-calibration.md").read_text(encoding="utf-8")
    label, ladder = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert read_calibration_file(ladder.encode()).models == ("small", "large")
    assert len(read_labelled(label.encode()).rows) == 1


def test_defaults_are_reported_as_they_are() -> None:
    """Where a paper shows all words of a thing with their defaults."""
    reported = {paper.stem: read_settings(example, VARIABLES)[0] for paper, example in configurations()}
    retries = reported["retries"]
    assert (retries.retries, retries.stall_detection, retries.timeouts) == (RetryTerms(), StallBounds(), Timeouts())
    (roles,) = (settings.roles for settings in shown("roles") if settings.roles)
    assert roles == read_settings("roles: true", {})[0].roles


def shown(paper: str) -> Iterator[Settings]:
    return (read_settings(example, VARIABLES)[0] for each, example in configurations() if each.stem == paper)


SIZES = {"": 1, "s": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def test_bounds_are_reported_as_they_are() -> None:
    """Each word of `limits` and `timeouts` with its default, where a number follows it."""
    reported = (ROOT / "docs" / "bounds.md").read_text(encoding="utf-8")
    usual = asdict(Limits()) | asdict(Timeouts())
    found = re.findall(r"`([a-z_]+)` ([0-9,]+)(?: (s|KB|MB|GB))?\b", reported)
    assert len(found) > 12
    for name, number, unit in found:
        assert usual[name] == int(number.replace(",", "")) * SIZES[unit], name


def test_every_timeout_is_reported() -> None:
    """In one table, with its default."""
    reported = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `([a-z_]+_s)` \| ([0-9]+) \|", reported, re.MULTILINE)
    assert {name: float(number) for name, number in found} == asdict(Timeouts())


def commands() -> Iterator[tuple[Path, list[str]]]:
    """All lines that begin with our command, where lines are meant to be typed."""
    for paper in PAPERS:
        for block in re.findall(r"```\w*\n(.*?)```", paper.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", "").splitlines():
                if typed := re.match(r"\s*(?:\.venv/bin/)?hearth ([^>&]+)", line):
                    yield paper, shlex.split(typed[1], comments=True)


OUTSIDE_PARSERS = {
    "agent": make_agent_parser,
    "demo": make_demo_parser,
    "pod": make_pod_parser,
    "shadow": make_shadow_parser,
    "simulate": make_simulate_parser,
    "profile": make_profile_parser,
}
"""Commands that stand outside the gateway."""


def test_every_command_can_be_typed() -> None:
    """With its flags."""
    found = list(commands())
    assert len(found) > 12
    for paper, words in found:
        try:
            if words[0] in OUTSIDE_PARSERS:
                OUTSIDE_PARSERS[words[0]]().parse_args(words[1:])
            else:
                make_parser(words).parse_args(words)
        except SystemExit:
            pytest.fail(f"{paper.name}: hearth {shlex.join(words)}")


def test_the_command_line_is_described_as_it_is() -> None:
    """docs/cli.md is what `make reference` writes, and each flag of it has words."""
    text = page()
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == text, "run make reference"
    assert [line for line in text.splitlines() if line.startswith("| `--") and line.endswith("` |  |")] == []


def test_tables_are_what_the_code_says() -> None:
    """Reasons, log fields, metrics, the admin API, keys of configuration and policy."""
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run make reference"
    made = "".join(make() for _, make in TABLES.values())
    assert [row for row in made.splitlines() if row.endswith("|  |")] == [], "without words"


def sources() -> str:
    return "".join(path.read_text(encoding="utf-8") for folder in SHIPPED for path in (ROOT / folder).rglob("*.py"))


def is_metric(name: str, code: str) -> bool:
    """Whether this is a family, or a sample of one."""
    family = re.sub(r"_(?:total|bucket|sum|count)$", "", name)
    pieces = (family, family.replace("hearth_cascade_", ""))  # Those of ladders are put together from their ends.
    return any(f'"{piece}"' in code for piece in pieces)


NAMED: dict[str, tuple[str, Callable[[str, str], bool]]] = {
    "metrics": (r"\bhearth_[a-z_]+[a-z]\b", is_metric),
    "headers": (r"\bx-hearth-[a-z-]+[a-z]\b", lambda name, code: f'"{name}"' in code.lower()),
    "verbs": (r"`make ([a-z-]+)", lambda name, _: f"\n{name}:" in (ROOT / "Makefile").read_text(encoding="utf-8")),
    "files": (
        rf"(?<![\w./-])(?:docs|bench|tests|deploy|{'|'.join(SHIPPED)})/[\w./-]+\.(?:md|py|txt|yaml|png)\b",
        lambda name, _: (ROOT / name).exists() or "NAME" in name,
    ),
}


@pytest.mark.parametrize("kind", NAMED)
def test_what_is_named_is_there(kind: str) -> None:
    """Metrics, headers, verbs of make, files of this repository."""
    (pattern, is_there), code = NAMED[kind], sources()
    named = {(paper.name, name) for paper in PAPERS for name in re.findall(pattern, paper.read_text(encoding="utf-8"))}
    assert len(named) > 5
    assert [f"{paper}: {name}" for paper, name in sorted(named) if not is_there(name, code)] == []


def test_every_metric_is_reported() -> None:
    """Each family that a gateway may show stands on a page, by its whole name."""
    pages = "".join(paper.read_text(encoding="utf-8") for paper in ROOT.glob("docs/*.md"))
    families = set(re.findall(r'"(hearth_[a-z_]+[a-z])",\s*"', sources()))
    assert len(families) > 60
    assert sorted(name for name in families if not re.search(rf"\b{name}(?:_total|_info)?\b", pages)) == []
