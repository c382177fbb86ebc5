"""Figures of how the sources are cut: circles of packages, names used twice, statements. Judges nothing."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from tests.sources import PURE, Source, read_sources

CORE = (*PURE, "gateway", "agent")
"""Packages that carry a request or decide about it, and the node agent inside the gateway."""


def module_name(path: PurePosixPath) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def package_of(path: PurePosixPath) -> str:
    """The folder of a module as a dotted name: its package."""
    return ".".join(path.parent.parts)


def imported_names(source: Source) -> Iterator[str]:
    """Every imported dotted name, relative and function-level imports included, those for annotations too."""
    package = package_of(source.path)
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def package_graph(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Package to the packages that its modules import."""
    packages = {module_name(source.path): package_of(source.path) for source in sources}
    graph: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        own = graph[package_of(source.path)]
        for name in imported_names(source):
            module = name if name in packages else name.rpartition(".")[0]
            if module in packages and packages[module] != package_of(source.path):
                own.add(packages[module])
    return dict(graph)


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of packages that all import each other, directly or through others; largest first."""
    reach = {package: _reachable(graph, package) for package in graph}
    found: list[set[str]] = []
    for package in graph:
        circle = {other for other in reach[package] if package in reach.get(other, ())}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return sorted(found, key=lambda circle: (-len(circle), sorted(circle)))


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    rest = [start]
    while rest:
        for other in graph.get(rest.pop(), ()):
            if other not in seen:
                seen.add(other)
                rest.append(other)
    return seen


def public_class_names(sources: Iterable[Source]) -> dict[str, list[str]]:
    """Public class name to the modules that define it, for names that are defined more than once."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(source.path))
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def statements(sources: Iterable[Source]) -> int:
    """Number of statements in the syntax trees, docstrings not counted."""
    return sum(_statements(source.nodes) for source in sources)


def _statements(nodes: Iterable[ast.AST]) -> int:
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in nodes)


def _is_text(node: ast.AST) -> bool:
    """A docstring, or a string that stands below a field as its description."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def callable_parameters(sources: Iterable[Source]) -> int:
    """Constructor parameters that are annotated as callables."""
    count = 0
    for source in sources:
        for node in source.functions():
            if node.name == "__init__":
                parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs][1:]
                count += sum("Callable" in ast.unparse(one.annotation) for one in parameters if one.annotation)
    return count


def importers(sources: Iterable[Source]) -> Counter[str]:
    """Module to the number of modules that import it."""
    names = {module_name(source.path) for source in sources}
    counts: Counter[str] = Counter()
    for source in sources:
        own = module_name(source.path)
        wanted = {name if name in names else name.rpartition(".")[0] for name in imported_names(source)}
        counts.update((wanted & names) - {own})
    return counts


def main() -> None:
    """Print today's figures."""
    sources = read_sources(*CORE)
    largest = max(circles(package_graph(sources)), key=len, default=set())
    print(f"files {len(sources)}, statements {statements(sources)}")
    print(f"largest circle of packages {len(largest)}: {', '.join(sorted(largest)) or 'none'}")
    print(f"public class names used more than once {len(public_class_names(sources))}")
    print(f"constructor parameters that are callables {callable_parameters(sources)}")
    print(f"modules with one importer {sum(count == 1 for count in importers(sources).values())}")


if __name__ == "__main__":
    main()
