"""`hearth policy`: check, explain, diff with a trial on recorded traffic, schema."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.cli import main

A = sha256(b"a").hexdigest()

OLD = f"""\
auth: {{keys: {{legal: [{A}]}}}}
tiers: {{gold: {{priority: 10}}}}
defaults: {{rpm: 100}}
tenants:
  legal:
    tier: gold
    models: [tiny]
    max_budget: 5
"""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HEARTH_POLICY", "HEARTH_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main(["policy", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_right_policy_is_ok(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named in place, or by the configuration."""
    assert run(capsys, "check", old) == (0, f"{old}: ok\n", "")
    config = old.parent / "hearth.yaml"
    prices = "input_cost_per_token: 1e-6, output_cost_per_token: 1e-6"
    config.write_text(f"policy: {old}\nmodel_list: [{{model_name: tiny, {prices}}}]\n")
    assert run(capsys, "check", "--config", config) == (0, f"{old}: ok\n", "")


def test_every_fault_is_reported(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its path, status 1."""
    old.write_text(OLD.replace("tier: gold", "tier: golden\n    rmp: 5"))
    status, out, _ = run(capsys, "check", old)
    assert (status, out.splitlines()) == (
        1,
        [
            f"{old}: tenants.legal.rmp: unknown key (did you mean `rpm`?)",
            f"{old}: tenants.legal.tier: unknown tier `golden`",
        ],
    )


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("", "tenants.legal.max_budget: `tiny` has no price in the model_list"),
        ("input_cost_per_token: 1", "tenants.legal.max_budget: `tiny` has no price"),
    ],
)
def test_a_budget_needs_prices(old: Path, capsys: pytest.CaptureFixture[str], entry: str, words: str) -> None:
    """Of input and output, for every model that the tenant may use."""
    config = old.parent / "hearth.yaml"
    config.write_text(f"policy: {old}\nmodel_list: [{{model_name: tiny, {entry}}}]\n")
    status, out, _ = run(capsys, "check", "--config", config)
    assert (status, words in out) == (1, True)


def test_a_budget_needs_to_know_its_models(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that a pod may ever serve cannot be priced."""
    old.write_text(OLD.replace("    models: [tiny]\n", ""))
    config = old.parent / "hearth.yaml"
    config.write_text(f"policy: {old}\n")
    assert "tenants.legal.models: is missing: a budget" in run(capsys, "check", "--config", config)[1]


def test_it_explains_what_a_tenant_gets(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each word with its line, keys by their names."""
    status, out, _ = run(capsys, "explain", "legal", old)
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert status == 0
    assert rows["tier"].endswith("tenants.legal.tier, line 6")
    assert rows["rpm"].split()[1:] == ["100", "defaults.rpm,", "line", "3"]
    assert rows["keys"].split()[1] == A[:12]
    assert A not in out
    assert "unknown tenant `search`; the tenants are legal" in run(capsys, "explain", "search", old)[1]


def record(at: int, **words: object) -> str:
    reported = {"timestamp": f"2026-11-20T10:00:{at:02}.000Z", "tenant": "legal", "model": "tiny", "input_tokens": 10}
    return json.dumps({"schema": 2} | reported | words) + "\n"


def test_it_says_what_another_policy_would_change(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what it would have done to requests that were."""
    new, log = old.parent / "new.yaml", old.parent / "usage.jsonl"
    new.write_text(OLD.replace("rpm: 100", "rpm: 3"))
    log.write_text("".join(record(at) for at in range(9, 3, -1)) + "no line\n[]\n{}\n" + record(1, tenant=None))
    status, out, _ = run(capsys, "diff", old, new, "--usage-log", log)
    assert status == 0
    assert out.splitlines()[0].split() == ["legal", "rpm", "100", "->", "3"]
    assert f"7 requests of {log}" in out
    assert ["legal", "6", "0", "0", "3", "requests", "3"] in [line.split() for line in out.splitlines()]
    assert ["(none)", "1", "0", "1", "1", "unknown", "tenant", "1"] in [line.split() for line in out.splitlines()]
    assert run(capsys, "diff", old, old)[1] == "nothing changes\n"


def test_rejected_requests_of_a_log_are_counted(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are shown as refused, and tried again with the sizes that served requests of their tenant have."""
    old.write_text(OLD.replace("rpm: 100", "tpm: 100"))
    new, log = old.parent / "new.yaml", old.parent / "usage.jsonl"
    new.write_text(OLD.replace("rpm: 100", "tpm: 500"))
    rejected = {"status": 429, "input_tokens": None, "output_tokens": None, "reason": "rate_limited_tokens"}
    served = record(0, status=200, input_tokens=60, output_tokens=40, duration_s=0)
    log.write_text(served + "".join(record(at, **rejected) for at in range(1, 13)))
    status, out, _ = run(capsys, "diff", old, new, "--usage-log", log)
    assert status == 0
    assert ["legal", "13", "12", "12", "8", "tokens", "8"] in [line.split() for line in out.splitlines()]


def test_what_cannot_be_done_is_reported(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With status 1."""
    assert "no policy" in run(capsys, "check")[2]
    assert "cannot be read" in run(capsys, "check", "/nowhere")[1]
    (old.parent / "log").write_text("{}\n")
    assert "holds no request" in run(capsys, "diff", old, old, "--usage-log", old.parent / "log")[2]


def test_schemas_are_printed(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the policy and of the configuration."""
    assert run(capsys, "schema")[0] == 0 == main(["config", "schema"])
    main(["policy", "schema"])
    schema = json.loads(capsys.readouterr().out.partition("\n}\n")[2])
    assert not list(Draft202012Validator(schema).iter_errors(yaml.safe_load(OLD)))
