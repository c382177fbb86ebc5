"""How a server was started: what the agent publishes of it, and that nothing else leaves the node."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.loads import LoadListener
from agent.server_process import ServerCommand, command_behind, hash_seed_digest, settings_from_command
from routing.pod_record import (
    MAX_RECORD_BYTES,
    AgentRecord,
    RegisteredPod,
    known_counters,
    read_record,
    write_record,
)
from routing.server_settings import (
    HASH_SEED_VARIABLE,
    NO_SEED,
    OPTION_FORMS,
    VARIABLE_FORMS,
    ServerSettings,
    permitted_settings,
)

SECRET = "sk-PLANTED/secret"

COMMAND = (
    *("vllm", "serve", f"/models/{SECRET}/m", "--api-key", SECRET, "--hf-token", SECRET),
    *("--no-enable-chunked-prefill", "--enable-prefix-caching", "--max-num-batched-tokens", "2048"),
    *("--speculative-config", json.dumps({"method": "ngram", "model": f"/w/{SECRET}", "num_speculative_tokens": 4})),
    *("--kv-events-config", json.dumps({"enable_kv_cache_events": True, "endpoint": f"tcp://u:{SECRET}@h:1"})),
    *("--attention-backend", SECRET, "--otlp-traces-endpoint", f"https://u:{SECRET}@h", "--enforce-eager"),
)

VARIABLES = {
    "UCX_TLS": "rc,tcp",
    "UCX_NET_DEVICES": "mlx5_0:1",
    "NCCL_DEBUG": SECRET,
    "HF_TOKEN": SECRET,
    "VLLM_API_KEY": SECRET,
    HASH_SEED_VARIABLE: hash_seed_digest("77"),
}


def test_listed_options_are_published_and_nothing_else(tmp_path: Path) -> None:
    """Flags by their value, keys of JSON options one by one; what does not have the form of its kind is dropped."""
    found = settings_from_command(COMMAND, VARIABLES, tmp_path)
    assert found.options == {
        "enable-chunked-prefill": "false",
        "enable-prefix-caching": "true",
        "max-num-batched-tokens": "2048",
        "speculative-config.method": "ngram",
        "speculative-config.num_speculative_tokens": "4",
        "kv-events-config.enable_kv_cache_events": "true",
        "enforce-eager": "true",
    }
    assert found.environment == {"UCX_TLS": "rc,tcp", "UCX_NET_DEVICES": "mlx5_0:1"}
    assert SECRET not in repr(found)


def test_equal_hash_seeds_have_equal_digests(tmp_path: Path) -> None:
    """None is told from one, and from an environment that could not be read."""
    assert hash_seed_digest("1") == hash_seed_digest("1") != hash_seed_digest("2")
    assert settings_from_command(COMMAND, VARIABLES, tmp_path).hash_seed == hash_seed_digest("77")
    assert settings_from_command(COMMAND, {"UCX_TLS": "tcp"}, tmp_path).hash_seed == NO_SEED
    assert settings_from_command(COMMAND, {}, tmp_path).hash_seed is None


def test_a_seed_leaves_the_process_list_as_a_digest(tmp_path: Path) -> None:
    """With what may be published; other variables are not even kept."""
    pid = tmp_path / "42"
    (pid / "fd").mkdir(parents=True)
    (pid / "cmdline").write_text("vllm\0serve\0m\0")
    (pid / "environ").write_text(f"PYTHONHASHSEED=77\0UCX_TLS=tcp\0HF_TOKEN={SECRET}\0")
    (pid / "stat").write_text("42 (vllm) S 1 ")
    (pid / "fd" / "3").symlink_to("socket:[9]")
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("head\n 0: 0100007F:1F40 00000000:0000 0A 0 0 0 0 0 9\n")
    found = command_behind(8000, tmp_path)
    assert isinstance(found, ServerCommand)
    assert found.variables == {HASH_SEED_VARIABLE: hash_seed_digest("77"), "UCX_TLS": "tcp"}


def test_a_model_is_known_by_its_configuration(tmp_path: Path) -> None:
    """Its digest, and its commit where it stands in a cache of snapshots."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "root/.cache/huggingface/hub/models--org--m/snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "x"}')
    found = settings_from_command(("vllm", "serve", "org/m"), {"HOME": "/root"}, tmp_path)
    assert found.model_revision == commit[:12]
    assert found.model_digest is not None
    assert len(found.model_digest) == 16


def test_a_tokenizer_and_a_template_are_known_by_their_files(tmp_path: Path) -> None:
    """Of the model, or of the options that replace them; neither is known where its file is not found."""
    for name, text in (("model", "a"), ("other", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(text)
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"chat_template": "{{ text }}"}')
    (tmp_path / "plain.jinja").write_text("{{ words }}")

    def digests(*more: str) -> tuple[str | None, str | None]:
        found = settings_from_command(("vllm", "serve", "/model", *more), {}, tmp_path)
        return found.tokenizer_digest, found.template_digest

    tokenizer, template = digests()
    assert None not in (tokenizer, template)
    assert digests("--served-model-name", "m") == (tokenizer, template)
    assert digests("--tokenizer", "/other")[0] not in (tokenizer, None)
    assert digests("--tokenizer", "/nowhere") == (None, template)
    assert digests("--chat-template", "/plain.jinja")[1] == digests("--chat-template", "{{ words }}")[1] != template
    assert digests("--chat-template", "plain.jinja") == (tokenizer, None)
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ words }}")
    assert digests()[1] == digests("--chat-template", "{{ words }}")[1]


def test_settings_travel_in_the_record_and_older_readers_keep_the_rest() -> None:
    """Readers apply the lists once more; a record of before has no settings."""
    settings = ServerSettings(options={"max-num-seqs": "8"}, environment={"UCX_TLS": "rc"}, hash_seed="ab" * 6)
    record = AgentRecord("a", 1, 15.0, (RegisteredPod("http://h:1", settings=settings),))
    written = json.loads(write_record(record))
    assert read_record(json.dumps(written).encode()).pods[0].settings == settings
    written["pods"][0]["settings"]["options"] |= {"api-key": "x", "max-num-seqs": "no number"}
    assert read_record(json.dumps(written).encode()).pods[0].settings.options == {}
    del written["pods"][0]["settings"]
    assert read_record(json.dumps(written).encode()).pods == (RegisteredPod("http://h:1"),)


def test_a_record_that_becomes_too_long_is_written_without_settings() -> None:
    """Pods must not vanish because their command lines are long."""
    options = {name: 15 * "1" for name, form in OPTION_FORMS.items() if form.fullmatch(15 * "1")}
    pods = tuple(RegisteredPod(f"http://host-{at}:8000", settings=ServerSettings(options=options)) for at in range(64))
    written = write_record(AgentRecord("a", 1, 15.0, pods))
    assert len(written) <= MAX_RECORD_BYTES
    assert all(pod.settings == ServerSettings() for pod in read_record(written).pods)


@given(st.dictionaries(st.sampled_from([*OPTION_FORMS, *VARIABLE_FORMS, "api-key"]), st.text(max_size=40)))
def test_no_value_is_published_that_could_be_a_path_or_a_url(given_values: dict[str, str]) -> None:
    """Of any form: no slash, no blank, no `@`, no dash within words."""
    kept = permitted_settings(ServerSettings(options=given_values, environment=given_values, hash_seed=SECRET))
    assert kept.hash_seed is None
    for value in (*kept.options.values(), *kept.environment.values()):
        assert not set(value) & set("/@ \\\"'%?&#")


def datagram(**words: object) -> bytes:
    return json.dumps({"port": 8000, "rank": 0, **words}).encode()


def test_settings_and_counters_of_an_engine_are_taken_from_its_datagrams() -> None:
    """By the same lists; counters alone are no reason to publish."""
    changes: list[int] = []
    loads = LoadListener(lambda: 1.0, lambda: changes.append(1))
    loads.datagram_received(datagram(settings={"max-num-seqs": "8", "api-key": SECRET}), None)
    assert loads.settings_of(8000) == {"max-num-seqs": "8"}
    load = {"running": 1, "waiting": 0, "kv_usage": 0.5}
    loads.datagram_received(
        datagram(**load, counters={"drafts": 3.0, "secret": 1.0}, fetching={"in_progress": 2}), None
    )
    loads.datagram_received(datagram(**load, counters={"drafts": 4.0, "preemptions": -1}), None)
    (found,) = loads.loads_of(8000)
    assert found.counters == {"drafts": 4.0}
    assert found.fetching == {}
    assert len(changes) == 1
    loads.forget(8000)
    assert loads.settings_of(8000) == {}
    assert loads.invalid == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_counters_in_a_record_are_numbers(value: float) -> None:
    """Whatever a writer puts there."""
    assert known_counters({"drafts": value, "transfers": 1.0}) == {"transfers": 1.0}
    assert msgspec.json.encode(ServerSettings()) == b"{}"
