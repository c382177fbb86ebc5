"""Ratchets on how the sources are cut. Each bound is the figure of today; lower it when the figure falls."""

from __future__ import annotations

import asyncio

import pytest

from tests.house.shape import CORE, circles, imported_names, package_graph, public_class_names
from tests.house.trace_request import POLICY, trace_request
from tests.sources import parse, read_sources

MAX_TRACE = {True: (62, 275, 620), False: (54, 198, 455)}
"""With and without a policy: files, switches and calls of one streamed chat (`make trace-request`)."""

FEATURES = (
    *("agent", "gateway/canary", "gateway/ext_proc", "gateway/cascades", "gateway/pairs", "gateway/roles"),
    *("gateway/kv_index", "gateway/server/superseding.py", "gateway/server/stored_responses.py", "gateway/resume"),
    *("cascade", "gateway/tracing", "gateway/key_api", "gateway/runtime/trace_context.py"),
    *("routing/canary", "routing/connectors", "routing/precise", "routing/replica_state.py", "routing/pairing"),
)
"""Files and packages of features that the traced request does not use."""


def test_packages_form_no_circle() -> None:
    """Packages that import each other can only be read together."""
    assert circles(package_graph(read_sources(*CORE))) == []


@pytest.mark.parametrize(
    "closing", ["from gateway.a import x", "def f():\n    import gateway.a.one", "from ..a import one"]
)
def test_a_planted_circle_of_packages_is_found(closing: str) -> None:
    """Modules need not import each other for their packages to do so; relative and inner imports count."""
    sources = [
        parse("gateway/a/__init__.py", ""),
        parse("gateway/a/one.py", "from gateway.b import two"),
        parse("gateway/b/__init__.py", ""),
        parse("gateway/b/two.py", ""),
        parse("gateway/b/three.py", closing),
    ]
    assert circles(package_graph(sources)) == [{"gateway.a", "gateway.b"}]
    assert circles(package_graph(sources[:-1])) == []


def test_relative_imports_are_resolved() -> None:
    """A dot is the package of the module, two dots the one above."""
    source = parse("gateway/a/one.py", "from . import two\nfrom ..b.c import d\nfrom .x import y")
    assert list(imported_names(source)) == ["gateway.a.two", "gateway.b.c.d", "gateway.a.x.y"]


def test_no_class_name_is_used_twice() -> None:
    """A public class name means one thing in the packages that carry requests."""
    assert public_class_names(read_sources(*CORE)) == {}


def test_a_repeated_class_name_is_found() -> None:
    """Private classes may share a name."""
    sources = [parse("routing/a.py", "class Load: ...\nclass _Own: ..."), parse("gateway/b.py", "class Load: ...")]
    assert public_class_names([*sources, parse("gateway/c.py", "class _Own: ...")]) == {
        "Load": ["routing/a.py", "gateway/b.py"]
    }


@pytest.mark.parametrize("has_policy", [True, False])
def test_a_plain_request_runs_through_no_more_code(has_policy: bool) -> None:
    """Files, switches between files and calls of one streamed chat may only fall; features that are off do not run."""
    trace = asyncio.run(trace_request(POLICY if has_policy else None))
    files, switches, calls = MAX_TRACE[has_policy]
    assert len(trace.files) <= files, trace.files
    assert trace.switches <= switches
    assert len(trace.calls) <= calls
    running = [file for file in trace.files if file.startswith(FEATURES)]
    assert running == []
