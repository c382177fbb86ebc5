"""How many bytes of KV a token leaves in a cache, from a model's own `config.json`: what a hand-over has to move.

Per layer that keeps KV: KV heads x (a key and a value of head size numbers, as the cache packs them). Layers of linear
attention keep a state of fixed size instead, and none of it per token (Qwen3.6-27B keeps KV in 16 of its 64 layers).
Layers that see a sliding window keep its tokens only, so in the long run nothing per token. Latent attention
(DeepSeek's MLA) keeps one compressed vector, `kv_lora_rank` + `qk_rope_head_dim` numbers, in the place of keys and
values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

DEFAULT_KV_BYTES = 131_072.0
"""Of a model that tells nothing: 32 layers of 8 heads of 128 numbers of two bytes, an 8B model of the Llama kind."""


class KvPacking(NamedTuple):
    """How a cache keeps the key and the value of one token and one head."""

    key_bits: float
    """Per number, with the scales of its block: nvfp4 has one of 8 bits per 16 numbers, mxfp4 one per 32."""
    value_bits: float
    vector_bytes: int = 0
    """Scales, norms and zero points of both vectors together."""


PACKINGS: Mapping[str, KvPacking] = {
    **dict.fromkeys(("float32", "float"), KvPacking(32, 32)),
    **dict.fromkeys(("bfloat16", "float16", "half"), KvPacking(16, 16)),
    **dict.fromkeys(("fp8", "int8"), KvPacking(8, 8)),
    **dict.fromkeys(("fp8_per_token_head", "int8_per_token_head"), KvPacking(8, 8, 8)),
    "int4_per_token_head": KvPacking(4, 4, 8),
    "int4": KvPacking(4, 4),
    "nvfp4": KvPacking(4.5, 4.5),
    **dict.fromkeys(("fp4", "mxfp4"), KvPacking(4.25, 4.25)),
    "turboquant_k8v4": KvPacking(8, 4, 4),
    "turboquant_4bit": KvPacking(4, 4, 6),
    "turboquant_k3v4": KvPacking(3, 4, 6),
    "turboquant_3bit": KvPacking(3, 3, 6),
    "ultraquant_4bit": KvPacking(4, 4, 6),
}
"""By `--kv-cache-dtype` or the model's own dtype. A longer name (`fp8_e5m2`, `nvfp4_4over6`) goes by its beginning."""

TWO_BYTES = KvPacking(16, 16)

LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Per layer and token, of caches that keep DeepSeek's latent vector in a layout of their own."""

FULL = "full_attention"


def kv_bytes_per_token(config: Mapping[str, object], kv_dtype: str | None = None) -> float:
    """Bytes per token, over all ranks together. `kv_dtype` is the cache's own, where it is not the model's.

    Raises ValueError where a config does not say what it takes.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    kind = kv_dtype if kv_dtype and kv_dtype != "auto" else str(config.get("dtype") or config.get("torch_dtype"))
    packing = _packing(kind)
    layers = _layers_with_kv(config)
    if (latent := config.get("kv_lora_rank")) is not None:
        if kind in LATENT_BYTES:
            return float(layers * LATENT_BYTES[kind])
        numbers = _count(latent) + _count(config.get("qk_rope_head_dim", 0))
        return layers * (numbers * packing.key_bits / 8 + packing.vector_bytes / 2)
    heads = _count(config.get("num_attention_heads"))
    kv_heads = _count(config.get("num_key_value_heads") or heads)
    size = config.get("head_dim") or _count(config.get("hidden_size")) // heads
    return layers * kv_heads * (_count(size) * (packing.key_bits + packing.value_bits) / 8 + packing.vector_bytes)


def bits_per_number(kind: str) -> float | None:
    """Return the mean bits of a number in a cache of this type, scales of blocks included; None for an unknown type."""
    known = _known_packing(kind)
    return None if known is None else (known.key_bits + known.value_bits) / 2


def _layers_with_kv(config: Mapping[str, object]) -> int:
    kinds = config.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return sum(kind == FULL for kind in kinds)
    layers = _count(config.get("num_hidden_layers"))
    every = config.get("full_attention_interval")
    return layers // _count(every) if every else layers


def _packing(kind: str) -> KvPacking:
    """That of the longest known name with which this one begins; two bytes a number where none is known."""
    return _known_packing(kind) or TWO_BYTES


def _known_packing(kind: str) -> KvPacking | None:
    known = [name for name in PACKINGS if kind.startswith(name)]
    return PACKINGS[max(known, key=len)] if known else None


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("the model's config does not tell the size of its attention")
    return value
