"""How many bytes of KV a token leaves in a cache, from a model's own `config.json`: what a hand-over has to move.

Per layer that keeps KV: 2 (keys and values) x KV heads x head size x bytes per number. Layers of linear attention keep
a state of fixed size instead, and none of it per token (Qwen3.6-27B keeps KV in 16 of its 64 layers). Layers that see a
sliding window keep its tokens only, so in the long run nothing per token. Latent attention (DeepSeek's MLA) keeps one
compressed vector, `kv_lora_rank` + `qk_rope_head_dim` numbers, in the place of keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

USUAL_KV_BYTES = 131_072.0
"""Of a model that tells nothing: 32 layers of 8 heads of 128 numbers of two bytes, an 8B model of the Llama kind."""

BYTES_PER_NUMBER = {"auto": 2, "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
"""By `--kv-cache-dtype` or the model's own dtype; all kinds of fp8 take one."""

FULL = "full_attention"


def kv_bytes_per_token(config: Mapping[str, object], kv_dtype: str | None = None) -> float:
    """Bytes per token, over all ranks together. `kv_dtype` is the cache's own, where it is not the model's.

    Raises ValueError where a config does not say what it takes.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    number = _bytes_per_number(kv_dtype or "auto", str(config.get("dtype") or config.get("torch_dtype") or "auto"))
    layers = _layers_with_kv(config)
    if (latent := config.get("kv_lora_rank")) is not None:
        return layers * (_count(latent) + _count(config.get("qk_rope_head_dim", 0))) * number
    heads = _count(config.get("num_attention_heads"))
    kv_heads = _count(config.get("num_key_value_heads") or heads)
    size = config.get("head_dim") or _count(config.get("hidden_size")) // heads
    return 2.0 * layers * kv_heads * _count(size) * number


def _layers_with_kv(config: Mapping[str, object]) -> int:
    kinds = config.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return sum(kind == FULL for kind in kinds)
    layers = _count(config.get("num_hidden_layers"))
    every = config.get("full_attention_interval")
    return layers // _count(every) if every else layers


def _bytes_per_number(kv_dtype: str, dtype: str) -> int:
    if kv_dtype.startswith("fp8"):
        return 1
    return BYTES_PER_NUMBER.get(dtype if kv_dtype == "auto" else kv_dtype, 2)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("the model's config does not tell the size of its attention")
    return value
