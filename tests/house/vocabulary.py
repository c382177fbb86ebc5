"""Counts retired words: in names that the sources define, and in prose. The glossary is in ARCHITECTURE.md.

Names are counted by their parts (`open_meter` has the parts `open` and `tab`), wherever they are defined. Depends on no
package of the gateway.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.sources import ROOT, Source

GLOSSARY = ROOT / "ARCHITECTURE.md"

PROSE = (
    r"\b(?:nobody|somebody|anybody|whoever|whom|whomever)\b",
    r"(?:^|[.,;:(] |\b(?:and|or|than|of|for|to|by) )who (?:[a-z]+s|is|has|was|had|may|would|could|does|came)\b",
    r"\b(?:is|are|was|were|been|be|not) (?:told|said|asked|heard|spoken)\b",
    r"\b(?:foretold|foretell|foresee|foreseen|lately|anew|heed\w*|reckon\w*|befall\w*|hence|whence)\b",
    r"\bof late\b|\ball the same\b|\bat hand\b|\bfor good\b|\bin force\b|\bsave for\b|\bbut for\b",
    r"\b(?:go|goes|gone|going) on with\b",
    r"\bstands? (?:in|at|for|by|on|there|beside|behind|until|still)\b|\bstood\b",
    r"\b(?:is|are|was|were) no [a-z]+\b|\bis none\b",
    r"\bknows? (?:no|neither|nothing|nobody|what|which|how|who)\b",
    r"\bwarm(?:th|ly|er|est)?\b|\brungs?\b|\bladders?\b|\bclimb\w*\b|\bpromis\w+\b",
)
"""Archaic phrases, personified components and words that the glossary has replaced. Case does not count."""

_PROSE = re.compile("|".join(PROSE), re.IGNORECASE | re.MULTILINE)


def retired_words(glossary: Path = GLOSSARY) -> dict[str, str]:
    """Return what each retired word is replaced by, from the last two columns of the glossary."""
    _, _, table = glossary.read_text(encoding="utf-8").partition("## Glossary")
    found: dict[str, str] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] != "thing":
            found |= {word.strip(): cells[1] for word in cells[2].split(",") if word.strip()}
    return found


def parts(name: str) -> list[str]:
    """Split an identifier at underscores and capitals, in lower case."""
    return [part.lower() for part in re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).split("_") if part]


def defined_names(source: Source) -> Iterator[str]:
    """Yield each name that a module defines: its own, classes, functions, parameters, fields and constants."""
    if source.path.stem != "__init__":
        yield source.path.stem
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def retired_names(sources: Iterable[Source], words: Iterable[str]) -> Counter[str]:
    """Count the defined names with a retired part, by that part; a name counts once per module."""
    retired = set(words)
    found: Counter[str] = Counter()
    for source in sources:
        for name in set(defined_names(source)):
            found.update(retired.intersection(parts(name)))
    return found


def docstrings_and_comments(source: Source) -> str:
    """Return the prose of a module."""
    texts = [
        node.value.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(texts)


def archaic_per_1000(texts: Iterable[str]) -> float:
    """Return archaic phrases per thousand words of prose; fenced code and code spans do not count."""
    hits = words = 0
    for text in texts:
        prose = re.sub(r"```.*?```|`[^`\n]*`", " ", text, flags=re.DOTALL)
        hits += len(_PROSE.findall(prose))
        words += len(prose.split())
    return 1000 * hits / words if words else 0.0
