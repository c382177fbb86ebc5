"""Docstrings name classes and attributes that exist."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tests.house.shape import CORE
from tests.house.vocabulary import docstrings_and_comments
from tests.sources import FOLDERS, Source, parse, read_sources

ELSEWHERE = {"ConstructorError", "MooncakeConnector", "NixlConnector"}
"""Classes of vLLM and PyYAML that docstrings name."""

_CODE = re.compile(r"`([A-Z][a-z]+[A-Za-z]*)(?:\.(\w+))?(?:\(\))?`")


def members(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Return the names in each class, with those of its bases; imported and builtin names stand for themselves."""
    found: dict[str, set[str]] = {name: set(dir(getattr(builtins, name))) for name in dir(builtins)}
    bases: dict[str, set[str]] = {}
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                own = found.setdefault(node.name, set())
                bases.setdefault(node.name, set()).update(
                    ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases
                )
                for part in ast.walk(node):
                    own.update(_names(part))
            elif isinstance(node, ast.alias):
                found.setdefault((node.asname or node.name).split(".")[-1], set())
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.setdefault(node.id, set())
    for _ in range(4):
        for name, above in bases.items():
            for base in above:
                found[name] |= found.get(base, set())
    return found


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr


def dead_names(source: Source, known: dict[str, set[Any]]) -> set[str]:
    """Return the names in backticks of classes, or of their attributes, that no source defines."""
    found = set()
    for match in _CODE.finditer(docstrings_and_comments(source)):
        name, attribute = match.groups()
        if name not in known and name not in ELSEWHERE:
            found.add(name)
        elif attribute and known.get(name) and attribute not in known[name]:
            found.add(f"{name}.{attribute}")
    return found


def test_docstrings_name_what_exists() -> None:
    """A renamed class or method is renamed in the text as well."""
    known = members(read_sources(*FOLDERS, "tests"))
    dead = {str(source.path): dead_names(source, known) for source in read_sources(*CORE)}
    assert {path: names for path, names in dead.items() if names} == {}


def test_a_planted_dead_name_is_found() -> None:
    """A class that is gone, a method that is gone; what exists or is inherited is none of them."""
    source = parse(
        "gateway/a.py",
        "class Base:\n    def run(self): ...\n"
        'class One(Base):\n    """`One.run`, `One.go`, `Gone`, `ValueError`, `Base`."""',
    )
    assert dead_names(source, members([source])) == {"One.go", "Gone"}
