"""The sources as syntax trees, for the tests that judge how the code is cut. Knows the folders, but no rule."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]

PURE = ("routing", "scorers", "tenancy", "cascade", "supply", "diagnosis")
SHIPPED = (*PURE, "gateway", "agent", "simulator")
FOLDERS = (*SHIPPED, "bench", "tests")

GENERATED = ("_pb2.py", "_pb2_grpc.py")
"""Written by protoc: nobody reads these, so nobody judges them."""


@dataclass(frozen=True, slots=True)
class Source:
    """One module; `path` is relative to the repository."""

    path: PurePosixPath
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """The whole tree, walked once for all the rules."""

    @property
    def folder(self) -> str:
        return self.path.parts[0]

    def fault(self, node: ast.stmt | ast.expr, words: str) -> str:
        return f"{self.path}:{node.lineno}: {words}"

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def parse(path: str, text: str) -> Source:
    tree = ast.parse(text, filename=path)
    return Source(PurePosixPath(path), text, tree, tuple(ast.walk(tree)))


def read_sources(*folders: str) -> list[Source]:
    """All hand-written modules below the folders, in the order of their paths."""
    found = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [_read(path) for path in found if not path.name.endswith(GENERATED)]


@cache
def _read(path: Path) -> Source:
    return parse(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
