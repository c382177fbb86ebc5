"""Who may import whom, and how the code is cut: the rules that keep decisions pure and files readable.

Each rule is a function from one module to its faults. All of them run over all sources, and each of them is shown
something planted, so that a rule that has gone blind is noticed. One more needs all modules at once: that none imports,
by way of whatever others, itself.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.sources import FOLDERS, PURE, SHIPPED, Source, parse, read_sources

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "routing": (),
    "scorers": ("routing",),
    "tenancy": ("routing",),
    "cascade": ("routing",),
    "supply": ("routing",),
    "diagnosis": ("routing",),
    "agent": ("routing", "tenancy", "gateway.runtime", "gateway.config", "gateway.observe.log"),
    "gateway": PURE,
    "simulator": (*PURE, "gateway", "agent"),
    "bench": FOLDERS,
    "tests": FOLDERS,
}
"""Our own packages. `hearth` reaches the agent and the simulator through entry points; the gateway imports neither."""

THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "routing": ("msgspec", "xxhash"),
    "scorers": (),
    "tenancy": ("msgspec", "yaml"),
    "cascade": ("msgspec",),
    "supply": (),
    "diagnosis": (),
    "gateway": (
        *("aiohttp", "google.protobuf", "hpack", "httptools", "msgspec", "prometheus_client"),
        *("redis", "uvloop", "yaml", "zmq"),
        *("cryptography", "dns", "jwt", "kubernetes_asyncio", "opentelemetry"),  # extras
    ),
    "agent": ("aiohttp", "msgspec", "redis", "uvloop", "pynvml", "torch", "vllm"),
}
"""What may be imported at run time; who is not named here may import anything."""

WORLD = (
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "signal", "subprocess", "threading"),
    *("http", "select", "selectors", "smtplib", "socket", "socketserver", "ssl", "urllib.request"),
    *("os", "random", "secrets", "time", "uuid"),
)
"""Standard modules by which a pure package would touch the world: loops, sockets, environment, clock, chance."""

BANNED_WORDS = frozenset(("manager", "helper", "helpers", "util", "utils", "misc", "common"))

Rule = Callable[[Source], Iterator[str]]


def is_within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def imports(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Every import with its full dotted name, wherever it stands: inside a function it couples just as much."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def own_imports(source: Source) -> Iterator[str]:
    allowed = (source.folder, *MAY_IMPORT[source.folder])
    for node, name in imports(source):
        if is_within(name, FOLDERS) and not is_within(name, allowed):
            yield source.fault(node, f"{source.folder} may not import {name}")


def foreign_imports(source: Source) -> Iterator[str]:
    allowed = THIRD_PARTY.get(source.folder)
    if allowed is None:
        return
    for node, name in imports(source):
        is_foreign = name.partition(".")[0] not in sys.stdlib_module_names and not is_within(name, FOLDERS)
        if is_foreign and not is_within(name, allowed):
            yield source.fault(node, f"{source.folder} may not import {name}")


def worldly_imports(source: Source) -> Iterator[str]:
    """Pure packages get time and chance as arguments; modules are named, never found at run time."""
    if source.folder not in PURE:
        return
    for node, name in imports(source):
        is_search = is_within(name, ("importlib",)) and not is_within(name, ("importlib.metadata",))
        if is_search or is_within(name, WORLD):
            yield source.fault(node, f"{source.folder} is pure and may not import {name}")


def clock_readings(source: Source) -> Iterator[str]:
    if source.folder not in PURE:
        return
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="now" | "utcnow" | "today")):
                if ast.unparse(owner).rpartition(".")[2] in {"datetime", "date"}:
                    yield source.fault(node, f"{source.folder} is pure and may not read a clock")


def asynchrony(source: Source) -> Iterator[str]:
    if source.folder not in PURE:
        return
    for node in source.nodes:
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield source.fault(node, f"{source.folder} decides in one go and may not be async")
            case ast.comprehension(is_async=1, target=place):
                yield source.fault(place, f"{source.folder} decides in one go and may not be async")


def words_of(name: str) -> list[str]:
    """`KVDataManager_2` is kv, data, manager."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def banned_names(source: Source) -> Iterator[str]:
    """Names of folders, modules, classes and functions; a test's name is a sentence and may use any word."""
    for part in source.path.with_suffix("").parts:
        if banned := BANNED_WORDS.intersection(words_of(part)):
            yield f"{source.path}: {part} says nothing ({', '.join(banned)})"
    for node in source.nodes:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_exempt = source.folder == "tests" and node.name.startswith("test_")
        if not is_exempt and (banned := BANNED_WORDS.intersection(words_of(node.name))):
            yield source.fault(node, f"{node.name} says nothing ({', '.join(banned)})")


def silent_modules(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield f"{source.path}: no docstring to say what it is for"


def import_effects(source: Source) -> Iterator[str]:
    """Importing a shipped module defines things and does nothing: no calls for their effect, no loops."""
    if source.folder not in SHIPPED:
        return
    for node in source.tree.body:
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
        if is_call or isinstance(node, ast.For | ast.While | ast.With | ast.Delete):
            yield source.fault(node, "importing a module may not do anything")


RULES: tuple[Rule, ...] = (
    own_imports,
    foreign_imports,
    worldly_imports,
    clock_readings,
    asynchrony,
    banned_names,
    silent_modules,
    import_effects,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_sources_keep_every_rule(rule: Rule) -> None:
    """No module of ours breaks the rule; the message names every one that does."""
    sources = read_sources(*FOLDERS)
    assert {source.folder for source in sources} == set(FOLDERS)
    faults = [fault for source in sources for fault in rule(source)]
    assert not faults, "\n" + "\n".join(faults)


PLANTED: tuple[tuple[Rule, str, str], ...] = (
    (own_imports, "routing/a.py", "from gateway.cli import main"),
    (own_imports, "scorers/a.py", "import tenancy.policy"),
    (own_imports, "tenancy/a.py", "def choose():\n    from cascade import ladder"),
    (own_imports, "cascade/a.py", "from scorers import session"),
    (own_imports, "supply/a.py", "from tenancy.objective import Tier"),
    (own_imports, "diagnosis/a.py", "from gateway.fleet.scrape import read_page"),
    (own_imports, "gateway/http/a.py", "from simulator.pod import Pod"),
    (own_imports, "gateway/commands/a.py", "def run():\n    from agent.command import main"),
    (own_imports, "agent/a.py", "from gateway.discovery.registry import Registry"),
    (own_imports, "simulator/a.py", "from tests.sources import ROOT"),
    (foreign_imports, "routing/a.py", "import yaml"),
    (foreign_imports, "scorers/a.py", "import msgspec"),
    (foreign_imports, "gateway/a.py", "import requests"),
    (foreign_imports, "gateway/a.py", "import torch"),
    (worldly_imports, "routing/a.py", "from time import monotonic"),
    (worldly_imports, "tenancy/a.py", "import os.path"),
    (worldly_imports, "cascade/a.py", "from urllib import request"),
    (worldly_imports, "scorers/a.py", "from importlib import import_module"),
    (worldly_imports, "supply/a.py", "import random"),
    (clock_readings, "tenancy/a.py", "import datetime\nx = datetime.datetime.now(datetime.UTC)"),
    (asynchrony, "routing/a.py", "async def choose(): ..."),
    (asynchrony, "cascade/a.py", "rows = [row async for row in rows]"),
    (banned_names, "routing/a.py", "class KVManager: ..."),
    (banned_names, "gateway/a.py", "class Pod:\n    async def helper(self): ..."),
    (banned_names, "gateway/utils/a.py", ""),
    (banned_names, "tests/test_a.py", "def make_test_utils(): ..."),
    (silent_modules, "gateway/a.py", "x = 1"),
    (import_effects, "gateway/a.py", "import signal\nsignal.signal(1, print)"),
)


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED)
def test_a_planted_fault_is_found(rule: Rule, path: str, text: str) -> None:
    """Each rule sees what it is there to see, and says where."""
    faults = list(rule(parse(path, text)))
    assert len(faults) == 1
    assert faults[0].startswith(f"{path}:")


ALLOWED: tuple[tuple[Rule, str, str], ...] = (
    (own_imports, "scorers/a.py", "from routing.fleet import Fleet"),
    (own_imports, "gateway/a.py", "import tenancy.policy"),
    (own_imports, "agent/a.py", "from gateway.runtime.guard import restarted"),
    (own_imports, "routing/a.py", "from routing.request import Request"),
    (foreign_imports, "tenancy/a.py", "import yaml"),
    (foreign_imports, "gateway/a.py", "from google.protobuf import message"),
    (foreign_imports, "simulator/a.py", "import matplotlib.pyplot"),
    (worldly_imports, "scorers/a.py", "from importlib.metadata import entry_points"),
    (worldly_imports, "routing/a.py", "from urllib.parse import urlsplit"),
    (asynchrony, "gateway/a.py", "async def forward(): ..."),
    (banned_names, "gateway/a.py", "class RequestContext: ...\ndef handle_request(): ...\ndef commonly(): ..."),
    (banned_names, "tests/test_a.py", "def test_common_faults_are_refused(): ..."),
    (import_effects, "gateway/__main__.py", 'if __name__ == "__main__":\n    main()'),
)


@pytest.mark.parametrize(("rule", "path", "text"), ALLOWED)
def test_what_is_allowed_passes(rule: Rule, path: str, text: str) -> None:
    """No rule cries wolf at the edge of what it forbids."""
    assert list(rule(parse(path, text))) == []


def circle(sources: Iterable[Source]) -> Sequence[str]:
    """Modules each of which is imported by the one before it, the first by the last; empty where there are no such."""
    by_name = {module_name(source): source for source in sources}
    graph = {}
    for name, source in by_name.items():
        wanted = {imported for _, imported in imports(source)}
        graph[name] = {each if each in by_name else each.rpartition(".")[0] for each in wanted} & by_name.keys()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        return [str(name) for name in reversed(found.args[1])]
    return []


def module_name(source: Source) -> str:
    return ".".join(source.path.with_suffix("").parts).removesuffix(".__init__")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not for annotations either: who names the other stands above him, and can be read after him."""
    found = circle(read_sources(*FOLDERS))
    assert not found, " -> ".join(found)


TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    "back", ["import routing.a", TYPED + "from routing import a", "def f():\n    from routing.a import x"]
)
def test_a_planted_circle_is_found(back: str) -> None:
    """Through a package and another module, wherever the import stands that closes it; and none where that is not."""
    line = parse("routing/a.py", "from routing.b import c"), parse("routing/b/__init__.py", "from routing.d import c")
    assert circle((*line, parse("routing/d.py", "import routing.e"))) == []
    found = circle((*line, parse("routing/d.py", back)))
    assert sorted(set(found)) == ["routing.a", "routing.b", "routing.d"]
    assert "routing.b -> routing.d" in " -> ".join(found)
