"""Bytes of KV per token, from the configs of models as their makers publish them."""

import pytest

from routing.kv_bytes import kv_bytes_per_token

LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}
QWEN_27B_HYBRID = {
    "text_config": {
        "num_hidden_layers": 64,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "dtype": "bfloat16",
    }
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}


def test_keys_and_values_of_all_layers() -> None:
    """2 x 32 layers x 8 heads x 128 numbers of two bytes; one byte each where the cache is fp8."""
    assert kv_bytes_per_token(LLAMA_8B) == 131_072
    assert kv_bytes_per_token(LLAMA_8B, "fp8_e4m3") == 65_536
    assert kv_bytes_per_token(LLAMA_8B, "auto") == 131_072


@pytest.mark.parametrize(
    ("kind", "pair_bytes"),
    [
        ("int8", 256),
        ("int8_per_token_head", 264),
        ("int4_per_token_head", 136),
        ("fp8_per_token_head", 264),
        ("fp8_e5m2", 256),
        ("fp4", 136),
        ("nvfp4", 144),
        ("nvfp4_4over6", 144),
        ("turboquant_k8v4", 196),
        ("turboquant_3bit_nc", 102),
        ("bfloat16", 512),
        ("float32", 1024),
        ("another", 512),
    ],
)
def test_quantised_caches_take_what_they_pack(kind: str, pair_bytes: int) -> None:
    """A key and a value of 128 numbers with their scales, as vLLM lays them out, in 32 layers of 8 heads."""
    assert kv_bytes_per_token(LLAMA_8B, kind) == 32 * 8 * pair_bytes


def test_hybrid_models_keep_kv_in_some_layers_only() -> None:
    """16 of 64, told layer by layer or by an interval."""
    assert kv_bytes_per_token(QWEN_27B_HYBRID) == 2 * 16 * 4 * 256 * 2
    by_interval = {**LLAMA_8B, "full_attention_interval": 4}
    assert kv_bytes_per_token(by_interval) == 131_072 / 4


def test_latent_attention_keeps_one_vector() -> None:
    """512 + 64 numbers in each of 61 layers."""
    assert kv_bytes_per_token(DEEPSEEK_V3) == 61 * 576 * 2
    assert kv_bytes_per_token(DEEPSEEK_V3, "fp8") == 61 * 576
    assert kv_bytes_per_token(DEEPSEEK_V3, "fp8_ds_mla") == 61 * 656
    assert kv_bytes_per_token(DEEPSEEK_V3, "nvfp4_ds_mla") == 61 * 352


@pytest.mark.parametrize("config", [{}, {"num_hidden_layers": "32"}, {"num_hidden_layers": -1}])
def test_a_config_that_reports_nothing_is_an_error(config: dict[str, object]) -> None:
    """Not a guess."""
    with pytest.raises(ValueError, match="attention"):
        kv_bytes_per_token(config)
