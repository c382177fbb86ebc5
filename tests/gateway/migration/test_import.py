"""Examples of other gateways, written after their published shapes: each is imported, checked and listed completely."""

import copy
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import main
from gateway.commands.check import find_config_errors
from gateway.config.loading import check_file
from gateway.identity.policy import load_policy
from gateway.migration.document import Imported
from gateway.migration.envoy_ai_gateway import import_envoy_ai_gateway
from gateway.migration.litellm import import_litellm
from gateway.migration.llm_d import import_llm_d
from tenancy.document import InvalidValue
from tenancy.policy import Policy

EXAMPLES = Path(__file__).parent / "examples"

FILES = sorted(EXAMPLES.glob("*/*.yaml"))

POD = "http://127.0.0.1:9"

KEY = "sk-example-batch"

VARIABLES = {
    "POD_KEY": "pod-key",
    "REDIS_HOST": "127.0.0.1",
    "REDIS_PASSWORD": "hunter3",
    "REDIS_URL": "redis://127.0.0.1:6379",
    "VLLM_BASE": "http://127.0.0.1:9",
    "MASTER_KEY": "sk-example-master",
}
"""What the examples take from the environment."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def exports(path: Path, folder: Path) -> list[str]:
    """The flags for the exports that stand beside an example, with the digest of `KEY` in them."""
    flags = list[str]()
    for word in ("keys", "teams"):
        beside = path.with_name(f"{path.stem}.{word}.json")
        if beside.exists():
            copied = folder / beside.name
            copied.write_text(beside.read_text().replace("KEY_OF_BATCH", sha256(KEY.encode()).hexdigest()))
            flags += [f"--{word}", str(copied)]
    return flags


def imported(path: Path, folder: Path) -> int:
    """Import an example by the command; its status."""
    project = path.parent.name
    pods = ["--pod", POD] if project == "llm-d" else []
    return main(["import", project, str(path), "--dir", str(folder / "out"), *pods, *exports(path, folder)])


def policy_of(folder: Path) -> Policy:
    found = load_policy(check_file(folder / "out" / "hearth.yaml", VARIABLES), VARIABLES)
    assert found is not None
    return found


def test_there_are_enough_examples() -> None:
    """Ten at least of LiteLLM and of llm-d."""
    assert len([path for path in FILES if path.parent.name == "litellm"]) >= 10
    assert len([path for path in FILES if path.parent.name == "llm-d"]) >= 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_example_is_imported_and_passes_its_check(path: Path, tmp_path: Path) -> None:
    """Configuration and policy are valid, and no secret of the example is in them."""
    assert imported(path, tmp_path) == 0
    assert find_config_errors(tmp_path / "out" / "hearth.yaml", VARIABLES) == ()
    written = "".join(one.read_text() for one in (tmp_path / "out").glob("*.*"))
    assert not any(secret in written for secret in ("sk-example-master", "sk-literal", "hunter2", "sk-one", KEY))


def parsed(path: Path) -> list[Any]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def read(project: str, documents: list[Any]) -> Imported:
    match project:
        case "litellm":
            return import_litellm(documents[0], VARIABLES)
        case "llm-d":
            return import_llm_d(documents)
        case _:
            return import_envoy_ai_gateway(documents)


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings of a document."""
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(child)


COMPLETE = frozenset({"metadata", "selector", "targetPorts", "endpointPickerRef", "extensionRef"})
"""Parts that are used, or left where they are, as a whole."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_is_unknown_is_listed_wherever_it_stands(path: Path) -> None:
    """A key that no importer knows is put into each mapping of each example, and always stands in the list."""
    documents = parsed(path)
    for number in range(sum(1 for _ in mappings(documents))):
        changed = copy.deepcopy(documents)
        target = list(mappings(changed))[number]
        target["zz_unknown"] = 7
        result = read(path.parent.name, changed)
        places = [note.place for note in (*result.unmapped, *result.changed)]
        kept = json.dumps([result.config, result.policy])
        is_kept = "zz_unknown" in kept
        assert is_kept or any("zz_unknown" in place for place in places) or is_complete(changed, target), (
            number,
            places,
        )


def is_complete(documents: list[Any], target: dict[str, Any]) -> bool:
    """Whether a mapping is part of something that is used, or left where it is, as a whole."""

    def inside(value: Any) -> bool:
        return any(one is target for one in mappings(value))

    for document in documents:
        if document.get("kind") in ("HTTPRoute", "Deployment") and inside(document.get("spec")):
            return True
        if document.get("kind") == "LLMInferenceService" and inside(document["spec"]["model"]):
            return True
        for one in mappings(document):
            if any(inside(child) for word, child in one.items() if word in COMPLETE):
                return True
    return False


JUNK: list[Any] = [None, 7, -1.5, "x", True, [], {}, ["a"], [None], {"a": 1}, {"name": ["x"]}, float("inf"), "1e999"]


def slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place of a document, as a container and its key or index."""
    steps = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield value, step
        yield from slots(value[step])


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_value_of_another_kind_is_no_traceback(path: Path) -> None:
    """Anything may stand anywhere: the import ends in files or in a fault with its place."""
    documents = parsed(path)
    for number, _ in enumerate(list(slots(documents))):
        for junk in JUNK:
            changed = copy.deepcopy(documents)
            container, step = list(slots(changed))[number]
            container[step] = copy.deepcopy(junk)
            if path.parent.name != "litellm" or isinstance(changed[0], dict):
                with suppress(InvalidValue):
                    read(path.parent.name, [one for one in changed if one is not None])


def test_models_prices_and_aliases_are_kept(tmp_path: Path) -> None:
    """Names that clients use lead to what pods serve; what has two meanings is listed."""
    assert imported(EXAMPLES / "litellm" / "03-aliases.yaml", tmp_path) == 0
    aliases = yaml.safe_load((tmp_path / "out" / "policy.yaml").read_text())["defaults"]["aliases"]
    assert aliases == {
        "gpt-4o": "qwen3-32b",
        "gpt-4o-mini": "qwen3-8b",
        "gpt-4": "qwen3-32b",
        "gpt-3.5-turbo": "qwen3-8b",
    }
    listed = (tmp_path / "out" / "imported.txt").read_text()
    assert "model_list[2].model_name: one name over several models" in listed
    assert "router_settings.model_group_alias.claude" in listed
    assert "model_list[1].litellm_params.temperature" in listed


def test_keys_teams_and_budgets_are_kept(tmp_path: Path) -> None:
    """A team is a tenant; a key with limits of its own is a group of it; other keys are listed."""
    assert imported(EXAMPLES / "litellm" / "05-teams.yaml", tmp_path) == 0
    policy = policy_of(tmp_path)
    assert set(policy.tenants) == {"litellm-master", "Search-Ads"}
    team = policy.tenants["Search-Ads"]
    assert (team.quota.tokens_per_min, team.quota.budget) == (1_000_000, 100.0)
    callers = {key.caller.key_id: key.caller for key in policy.keys.values()}
    assert set(callers) == {"master", "search-prod", "search-batch"}
    assert callers["search-batch"].group == "search-batch"
    listed = (tmp_path / "out" / "imported.txt").read_text()
    for words in (
        "keys[2]",
        "keys[3].token: no SHA-256 digest",
        "teams[0].budget_duration: a month is 30 days",
        "teams[0].models[2]",
    ):
        assert words in listed


def test_a_key_without_a_team_is_a_tenant_with_its_aliases(tmp_path: Path) -> None:
    """Limits, budget, expiry, and the names that only this key may use."""
    assert imported(EXAMPLES / "litellm" / "11-keys-without-teams.yaml", tmp_path) == 0
    tenant = policy_of(tmp_path).tenants["notebook-7"]
    assert (tenant.quota.tokens_per_min, tenant.quota.budget) == (20_000, 5.0)
    assert dict(tenant.aliases) == {"gpt-4o": "qwen3-8b"}


def test_a_budget_without_a_period_stays_a_budget() -> None:
    """LiteLLM never resets it; a day, the policy's default, would multiply it."""
    model = {"model_name": "a", "litellm_params": {"model": "hosted_vllm/a", "api_base": "http://pod:8000"}}
    result = import_litellm({"model_list": [model]}, {}, teams=[{"team_id": "t", "max_budget": 10}])
    assert result.policy is not None
    assert result.policy["tenants"]["t"] == {"max_budget": 10.0, "budget_duration": "52w", "models": ["a"]}
    assert any(note.place == "teams[0].max_budget" for note in result.changed)
    assert any("counted as free" in note.words for note in result.changed)
    (entry,) = result.config["model_list"]
    assert (entry["input_cost_per_token"], entry["output_cost_per_token"]) == (0.0, 0.0)


def test_redis_keys_and_passwords_are_references(tmp_path: Path) -> None:
    """The password becomes a variable; a second key of the pods is listed."""
    assert imported(EXAMPLES / "litellm" / "08-redis-cache.yaml", tmp_path) == 0
    config = yaml.safe_load((tmp_path / "out" / "hearth.yaml").read_text())
    assert config["redis"] == "redis://:${REDIS_PASSWORD}@${REDIS_HOST}:6379"
    assert config["pod_api_key"] == "${POD_KEY}"
    assert "set HEARTH_POD_API_KEY" in (tmp_path / "out" / "imported.txt").read_text()


def test_without_the_master_key_requests_stay_authenticated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is in no variable is not a reason to let everybody in."""
    monkeypatch.delenv("MASTER_KEY")
    assert imported(EXAMPLES / "litellm" / "09-environment.yaml", tmp_path) == 0
    assert not policy_of(tmp_path).keys
    assert "run the import with MASTER_KEY set" in (tmp_path / "out" / "imported.txt").read_text()


def test_teams_of_a_token_are_tenants_by_their_id(tmp_path: Path) -> None:
    """The claim holds the id of a team; without an export of teams the policy accepts no token, and nobody else."""
    path = EXAMPLES / "litellm" / "07-jwt.yaml"
    assert imported(path, tmp_path) == 0
    policy = yaml.safe_load((tmp_path / "out" / "policy.yaml").read_text())
    assert policy["auth"]["jwt"]["tenant_claim"] == "groups"
    assert set(policy["tenants"]) == {"t-7"}
    alone = read("litellm", parsed(path))
    assert alone.policy is not None
    assert alone.policy["auth"] == {"keys_dir": "keys"}
    assert any("--teams" in note.words for note in alone.unmapped)


def test_downgrades_form_no_cycle(tmp_path: Path) -> None:
    """Fallbacks may lead back and forth; the first of them is kept."""
    assert imported(EXAMPLES / "litellm" / "06-fallbacks.yaml", tmp_path) == 0
    policy = yaml.safe_load((tmp_path / "out" / "policy.yaml").read_text())
    assert policy["defaults"]["downgrades"] == {"qwen3-32b": "qwen3-8b"}


def test_objectives_pools_and_scorers_of_llm_d() -> None:
    """Objectives are tiers, pools of one namespace are one source, and the absence of prefix scoring is kept."""
    objectives = read("llm-d", parsed(EXAMPLES / "llm-d" / "03-objectives.yaml"))
    assert objectives.policy is not None
    priorities = {name: tier["priority"] for name, tier in objectives.policy["tiers"].items()}
    assert priorities == {"interactive": 100, "offline": -10, "unset": 0, "standard": 0}
    pools = read("llm-d", parsed(EXAMPLES / "llm-d" / "12-two-pools.yaml")).config["discovery"]["kubernetes"]
    assert pools == [
        {"namespace": "a", "inference_pools": ["small", "medium"]},
        {"namespace": "b", "inference_pools": ["large"]},
    ]
    assert read("llm-d", parsed(EXAMPLES / "llm-d" / "10-random.yaml")).config["routing"] == "round-robin"
    loads = read("llm-d", parsed(EXAMPLES / "llm-d" / "02-pool.yaml")).config
    assert (loads["routing"], loads["extproc"]["max_endpoints"]) == ("least-loaded", 3)
    assert read("llm-d", parsed(EXAMPLES / "llm-d" / "05-precise.yaml")).config["kv_events"] is True
    flow = read("llm-d", parsed(EXAMPLES / "llm-d" / "08-flow-control.yaml"))
    assert flow.policy is not None
    assert flow.policy["tiers"]["standard"]["max_queue_s"] == 45
    rewrites = read("llm-d", parsed(EXAMPLES / "llm-d" / "06-rewrites.yaml"))
    assert rewrites.policy is not None
    assert rewrites.policy["defaults"]["aliases"] == dict.fromkeys(("gpt-4o", "assistant", "canaried"), "simulated")


def test_limits_of_envoy_ai_gateway() -> None:
    """Per user and per tenant, an hour's tokens as a minute's; pools, overrides and what is no vLLM."""
    limits = read("envoy-ai-gateway", parsed(EXAMPLES / "envoy-ai-gateway" / "02-token-limits.yaml")).policy
    assert limits is not None
    assert limits["tenants"] == {"default": {"per_user": {"tpm": 100}}, "search": {"rpm": 30}}
    assert limits["headers"] == {"user": "x-user-id", "tenant": "x-team"}
    pools = read("envoy-ai-gateway", parsed(EXAMPLES / "envoy-ai-gateway" / "03-pools.yaml"))
    assert pools.config["discovery"]["kubernetes"] == {"namespace": "inference", "inference_pools": ["qwen", "large"]}
    assert pools.policy is not None
    assert pools.policy["defaults"]["aliases"] == {"house": "qwen-large"}
    assert pools.policy["auth"] == {"keys": {"default": [sha256(b"sk-one").hexdigest()]}}
    fallback = read("envoy-ai-gateway", parsed(EXAMPLES / "envoy-ai-gateway" / "04-fallback.yaml")).config["model_list"]
    assert fallback == [
        {
            "model_name": "simulated",
            "pods": ["http://pod-1.example:8000", "http://vllm.default.svc.cluster.local:8000"],
        }
    ]


def test_a_file_without_vllm_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, with the way out."""
    path = tmp_path / "config.yaml"
    path.write_text("model_list: [{model_name: a, litellm_params: {model: azure/a, api_base: 'https://a.example'}}]\n")
    assert main(["import", "litellm", str(path), "--dir", str(tmp_path / "out")]) == 1
    assert "names no vLLM pod: add `discovery`" in capsys.readouterr().out


def test_files_that_are_there_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless --force is given; what is no YAML is named."""
    path = EXAMPLES / "litellm" / "01-one-model.yaml"
    assert imported(path, tmp_path) == 0
    assert imported(path, tmp_path) == 1
    assert "--force" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "out")
    broken = tmp_path / "broken.yaml"
    broken.write_text("model_list: [")
    assert main(["import", "litellm", str(broken), "--dir", str(tmp_path / "out")]) == 1
    assert "is not YAML" in capsys.readouterr().err


BOMB = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))


@pytest.mark.parametrize("project", ["litellm", "llm-d", "envoy-ai-gateway"])
def test_aliases_that_multiply_are_rejected(project: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kilobyte must not become more values than memory holds."""
    (tmp_path / "in.yaml").write_text(BOMB)
    assert main(["import", project, str(tmp_path / "in.yaml"), "--dir", str(tmp_path / "out")]) == 1
    assert "aliases repeat" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_report_cannot_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys of the imported file are shown without control characters, in the written report too."""
    (tmp_path / "in.yaml").write_text('model_list: []\n"\\e[2J\\e]0;x\\a": 1\n')
    main(["import", "litellm", str(tmp_path / "in.yaml"), "--dir", str(tmp_path)])
    for text in (capsys.readouterr().out, (tmp_path / "imported.txt").read_text()):
        assert "\\x1b[2J" in text
        assert "\x1b" not in text


@pytest.mark.parametrize("flags", [[], ["--force"]])
def test_nothing_is_written_through_a_link(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the link leads to no file yet: without --force it is there already, with it the link is replaced."""
    (tmp_path / "in.yaml").write_text("model_list: []\n")
    (tmp_path / "hearth.yaml").symlink_to(tmp_path / "elsewhere")
    main(["import", "litellm", str(tmp_path / "in.yaml"), "--dir", str(tmp_path), *flags])
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "hearth.yaml").is_symlink() == (not flags)
    assert ("is there already" in capsys.readouterr().err) == (not flags)
