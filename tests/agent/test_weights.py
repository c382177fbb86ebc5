"""What a server's own model config tells, wherever its process would find it."""

import json
import os
from pathlib import Path

import pytest

from agent.server_process import MAX_CONFIG_BYTES, facts_from_model_config

CONFIG = {"num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256}
HYBRID = {"text_config": {**CONFIG, "full_attention_interval": 4}}


def put(folder: Path, stated: object = HYBRID) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(stated if isinstance(stated, str) else json.dumps(stated))


def test_a_folder_is_read_as_the_server_sees_it(tmp_path: Path) -> None:
    """Under its own root; of a hybrid only the layers that keep KV count, at the width that the cache was given."""
    put(tmp_path / "models" / "q")
    words = ["vllm", "serve", "/models/q"]
    assert facts_from_model_config(words, {}, tmp_path, None) == {"kv_bytes_per_token": 2 * 16 * 4 * 256 * 2}
    assert facts_from_model_config(words, {}, tmp_path, "fp8_e4m3") == {"kv_bytes_per_token": 2 * 16 * 4 * 256}


@pytest.mark.parametrize(
    ("variables", "cache"),
    [
        ({"HF_HUB_CACHE": "/c"}, "c"),
        ({"HF_HOME": "/h"}, "h/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "x/huggingface/hub"),
        ({"HOME": "/root"}, "root/.cache/huggingface/hub"),
    ],
)
def test_a_name_is_looked_up_in_the_cache(tmp_path: Path, variables: dict[str, str], cache: str) -> None:
    """Where the server's environment puts it; of several snapshots the newest that has a config."""
    kept = tmp_path / cache / "models--org--m" / "snapshots"
    put(kept / "new", CONFIG)
    put(kept / "old", HYBRID)
    os.utime(kept / "old", (1, 1))
    (kept / "empty").mkdir()
    words = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/m"]
    assert facts_from_model_config(words, variables, tmp_path, None) == {"kv_bytes_per_token": 2 * 64 * 4 * 256 * 2}


ENDLESS = CONFIG | {"num_hidden_layers": 10**400}


@pytest.mark.parametrize(
    "stated",
    ["{", "[]", "{}", "[" * 100_000, '{"a": "' + "x" * MAX_CONFIG_BYTES + '"}', json.dumps(ENDLESS)],
)
def test_what_makes_no_sense_was_not_stated(tmp_path: Path, stated: str) -> None:
    """Broken, empty, too deep, too long, or of more layers than a number of floating point can be."""
    put(tmp_path / "m", stated)
    assert facts_from_model_config(["vllm", "serve", "/m"], {}, tmp_path, None) == {}


def test_nothing_is_read_where_nothing_is_named(tmp_path: Path) -> None:
    """No model, one that is not there, a way out of the cache, and a pipe that would never end."""
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.json")
    for words in (["vllm", "serve"], ["vllm", "serve", "--port", "1"], ["vllm", "serve", "org/m"]):
        assert facts_from_model_config(words, {}, tmp_path, None) == {}
    assert facts_from_model_config(["vllm", "serve", "../../m"], {"HF_HOME": "/"}, tmp_path, None) == {}
    assert facts_from_model_config(["vllm", "serve", "/pipe"], {}, tmp_path, None) == {}
