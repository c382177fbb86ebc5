"""`tinyqwen` as a model that thinks: its template opens thoughts, and what would end them is a token of its own.

It never ends them by itself, being random; a budget of thoughts has the engine end them. Made from the folder that
`make vllm-venv` has built, for the tests that need it.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tests.vllm.pods import FINE, VENV, PodPlan

MARKS = ("<think>", "</think>")
"""In place of the two rarest tokens, which nothing is made of."""

OPENING = """\
{%- if add_generation_prompt -%}
  {{- '<think>\\n' if enable_thinking | default(true) else '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
"""


TELLS_ALL = """\
{{- messages | tojson -}}
{{- tools | tojson if tools -}}
{{- [reasoning_effort | default(none), enable_thinking | default(none)] | tojson -}}
{%- if add_generation_prompt -%}{{- '<think>\\n' -}}{%- endif -%}
"""
"""A template that puts all that it is given into the prompt."""


def build(folder: Path) -> None:
    """Write the model into this folder, which is not there yet."""
    shutil.copytree(VENV / "models" / "tinyqwen", folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + OPENING)
    reported = folder / "tokenizer.json"
    tokenizer = json.loads(reported.read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    for mark, word in zip(MARKS, sorted(vocabulary, key=vocabulary.__getitem__)[-len(MARKS) :], strict=True):
        number = vocabulary[mark] = vocabulary.pop(word)
        merges[:] = [merge for merge in merges if "".join(merge) != word]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        tokenizer["added_tokens"].append({"id": number, "content": mark, **flags})
    reported.write_text(json.dumps(tokenizer))


def build_wordy(folder: Path) -> None:
    """The same, but it says nothing but words whatever it is asked, and its prompt is all that it is told.

    Their rows of the embedding are its head, where those of other tokens are nothing.
    """
    build(folder)
    (folder / "chat_template.jinja").write_text(TELLS_ALL)
    reported = folder / "config.json"
    reported.write_text(json.dumps(json.loads(reported.read_text()) | {"tie_word_embeddings": False}))
    weights = folder / "model.safetensors"
    complete = weights.read_bytes()
    begins_at = 8 + int.from_bytes(complete[:8], "little")
    header, data = json.loads(complete[8:begins_at]), complete[begins_at:]
    embedding = header["model.embed_tokens.weight"]
    begin, end = embedding["data_offsets"]
    row, words = (end - begin) // embedding["shape"][0], set(words_of(folder))
    rows = [data[at : at + row] for at in range(begin, end, row)]
    head = b"".join([each if number in words else bytes(row) for number, each in enumerate(rows)])
    header["lm_head.weight"] = embedding | {"data_offsets": [len(data), len(data) + len(head)]}
    text = json.dumps(header).encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text + data + head)


def thinking(folder: Path, name: str, parser: str = "deepseek_r1") -> PodPlan:
    """A pod of it, known by this name."""
    return PodPlan(str(folder), name=name, flags=(*FINE, "--reasoning-parser", parser))


def words_of(folder: Path) -> list[int]:
    """Tokens that are words with a blank before them, and the mark that ends thoughts.

    Whatever is said of these, it is told apart again as it was said: a text is split at its blanks first.
    """
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = [number for word, number in vocabulary.items() if re.fullmatch("Ġ[a-z]{2,}", word)]
    return [*words, vocabulary[MARKS[1]]]
