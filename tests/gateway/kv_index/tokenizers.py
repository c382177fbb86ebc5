"""A small tokenizer folder, trained in a moment: byte-level BPE with ChatML's special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = """\
{%- if tools -%}
{{- '<|im_start|>system\\nTools: ' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\\n' }}{{ message.content if message.content }}
  {%- for call in message.tool_calls or [] -%}
    {{- '<call>' + (call.function | tojson) + '</call>' -}}
  {%- endfor -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def babble(lines: int = 300) -> list[str]:
    rng = Random(7)
    words = ["sea", "ship", "captain", "storm", "island", "def", "return", "größe", "東京", "  ", "\n", "1234"]
    return [" ".join(rng.choices(words, k=12)) for _ in range(lines)]


def make_folder(folder: Path, *, bos: bool = False, odd: bool = False, template: str | None = CHATML) -> Path:
    """A model's folder. `bos`: it puts a token before every text; `odd`: a special token that eats spaces."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(babble(), trainer)
    if odd:
        bpe.add_special_tokens([AddedToken("<|eats|>", lstrip=True, rstrip=True)])
    if bos:
        bpe.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    folder.mkdir(exist_ok=True)
    bpe.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": {"content": "<|endoftext|>"}, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
