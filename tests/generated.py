"""Tables in the docs that are made of the code: between `<!-- generated: NAME -->` and `<!-- end -->`.

`make reference` writes them; tests/test_papers.py holds them.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

from gateway.config.settings import config_schema
from gateway.observe.admin import AdminBackend, admin_app
from gateway.observe.field_texts import FIELD_TEXTS
from gateway.observe.request_log import REQUEST_FIELDS, USAGE_FIELDS
from gateway.pipeline.reason_texts import REASON_TEXTS
from gateway.pipeline.rejections import RESPONSES
from tenancy.report.policy_schema import policy_schema
from tests.house.test_public_names import exposed_name, families_of, labels_of
from tests.sources import ROOT

MARKED = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = tuple[str, ...]


def table(head: Row, rows: Iterable[Row]) -> str:
    """Return a table of Markdown."""
    lines = [line(head), f"|{'---|' * len(head)}", *map(line, rows)]
    return "".join(f"{one}\n" for one in lines)


def line(cells: Row) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def code(text: str) -> str:
    return f"`{text}`"


# --- From the code ----------------------------------------------------------------------------------------------------


def reasons() -> str:
    """Status, code and owner as requests have them."""
    rows = []
    for reason, spec in RESPONSES.items():
        text = REASON_TEXTS[reason]
        rows.append((code(reason), str(spec.status), code(spec.code), spec.fault.value, text.cause, text.action))
    return table(("reason", "status", "code", "fault", "cause", "action"), rows)


CODES: Mapping[str, tuple[str, str]] = {
    "`state` of a pod": ("routing/pods.py", "PodState"),
    "`kind` of an attempt": ("routing/retries.py", "RetryKind"),
    "`result` of an attempt": ("gateway/pipeline/attempt.py", "AttemptStatus"),
    "`fallback_reason`, `hearth_pair_fallbacks_total{reason}`": ("routing/eligible.py", "PairingFallback"),
    "`hearth_limit_rejections_total{limit}`": ("tenancy/limits/usage.py", "LimitKind"),
    "`reason` of a pool in `GET /scale`": ("supply/desired.py", "SupplyReason"),
    "`reason` of a spill in `GET /scale`": ("supply/preference.py", "SpillReason"),
    "`verdict` of a split in `GET /scale`": ("supply/split_advice.py", "SplitVerdict"),
    "`hearth_warmups_total{reason}`, `pod_warmed`": ("supply/warmup.py", "StopReason"),
    "`hearth_warmup_skipped_total{reason}`": ("supply/warmup.py", "SkipReason"),
    "`hearth_traces_dropped_total{reason}`": ("gateway/tracing/exporter.py", "DropReason"),
}
"""Where operators see the values of an enumeration: its file and
name."""


def codes() -> str:
    """Values of closed lists beside rejection reasons, with the docstring of each."""
    rows = []
    for shown, (path, name) in CODES.items():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        for one, behind in pairwise([*found.body, ast.Pass()]):
            match one, behind:
                case ast.Assign([ast.Name(id)], ast.Constant(str(value))), _ if id.isupper():
                    words = behind.value if isinstance(behind, ast.Expr) else None
                    meaning = " ".join(str(words.value).split()) if isinstance(words, ast.Constant) else ""
                    rows.append((shown, code(value), meaning))
    return table(("where", "value", "meaning"), rows)


def log_fields(names: Iterable[str]) -> str:
    """Fields of a log in the order in which they are written."""
    return table(("field", "content"), [(code(name), FIELD_TEXTS[name]) for name in names])


def metrics() -> str:
    """Each family with its type and labels."""
    with TemporaryDirectory(prefix="hearth-reference-") as folder:
        families = asyncio.run(families_of(Path(folder)))
    rows = {}
    for family in families:
        if family.name.startswith("hearth_"):
            labels = ",".join(labels_of(family))
            shown = exposed_name(family) + (f"{{{labels}}}" if labels else "")
            rows[shown] = (code(shown), family.type, family.documentation)
    return table(("metric", "type", "meaning"), [rows[name] for name in sorted(rows)])


def admin_api() -> str:
    """Methods and paths of the admin port, with the words of their handlers."""
    app = admin_app(cast("AdminBackend", SimpleNamespace(token=None)))
    rows = []
    for route in app.router.routes():
        path = route.resource.canonical if route.resource is not None else ""
        if route.method != "HEAD":
            rows.append((code(f"{route.method} {path}"), first_line(route.handler.__doc__)))
    return table(("request", "answer"), rows)


def first_line(words: str | None) -> str:
    return (words or "").strip().partition("\n")[0]


FIELDS_IN = ("gateway/config", "gateway/roles", "routing", "scorers", "tenancy")

MIN_COMMON = 0.5
"""Share of a section's keys that the fields of a class must have, to be what the section is read into."""

MIN_KEYS = 2
"""One common key is chance: many classes have a `name`, a `path` or a `weight`."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a class: its words, and its default as the source has it; empty for none."""

    words: str
    default: str


@dataclass(frozen=True, slots=True)
class Section:
    """A class whose fields may be keys: first line of its docstring, fields, and `name` where it is a scorer."""

    words: str
    fields: dict[str, Field]
    name: str


NO_SECTION = Section("", {}, "")


@lru_cache
def classes() -> tuple[Section, ...]:
    """Return each class whose fields may be keys."""
    found = []
    for folder in FIELDS_IN:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [_section(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return tuple(found)


def _section(node: ast.ClassDef) -> Section:
    fields: dict[str, Field] = {}
    scorer = ""
    for one, behind in pairwise([*node.body, ast.Pass()]):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            if ast.unparse(one.annotation) == "ClassVar[str]":
                if one.target.id == "name" and isinstance(one.value, ast.Constant):
                    scorer = str(one.value.value)
                continue
            words, default = "", ""
            if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
                words = " ".join(str(behind.value.value).split())
            if (value := _constant(one.value)) not in (None, ""):
                default = str(value).lower() if isinstance(value, bool) else str(value)
            fields[one.target.id] = Field(words, default)
    return Section(first_line(ast.get_docstring(node)), fields, scorer)


def _constant(node: ast.expr | None) -> object:
    """Return the value of a constant, or of a size as `32 << 20`; None for all else."""
    match node:
        case ast.Constant(value):
            return value
        case ast.BinOp(ast.Constant(int(size)), ast.LShift(), ast.Constant(int(bits))):
            return size << bits
    return None


def section_of(key: str, below: Collection[str]) -> Section:
    """Return the class that a section is read into: the scorer of that name, else the class with most of its keys.

    No class where none has at least two of them, and half of them.
    """
    if key.startswith("routing.scorers."):
        return next(each for each in classes() if each.name == key.rpartition(".")[2])
    best = max(classes(), key=lambda each: (len(each.fields.keys() & below), -len(each.fields)))
    common = len(best.fields.keys() & below)
    return best if common >= max(MIN_KEYS, MIN_COMMON * len(below)) else NO_SECTION


def keys(schema: Mapping[str, Any]) -> str:
    """Each key of a JSON Schema with its type, and its meaning.

    Where the schema has no words, those of the field that the key is read into.
    """
    rows: dict[str, Row] = {}
    for row in _keys(schema, ""):
        if row[0] not in rows or not rows[row[0]][2]:
            rows[row[0]] = row
    # A list of sections and one section are read alike.
    lists = [key for key in rows if "[]" in key and key.replace("[]", "", 1) in rows]
    return table(("key", "type", "meaning"), [row for key, row in rows.items() if key not in lists])


def _keys(schema: Mapping[str, Any], path: str) -> Iterator[Row]:
    section = schema.get("properties", {})
    fields = section_of(path, section.keys()).fields if section else {}
    for name, below in section.items():
        at = f"{path}.{name}" if path else name
        words, field = below.get("description", ""), fields.get(name, Field("", ""))
        meaning = words or field.words
        if not meaning and path == "routing.scorers":
            meaning = section_of(at, ()).words
        if field.default and "default" not in meaning.lower():
            meaning = f"{meaning} Default: {field.default}.".strip()
        yield code(at), _type(below), meaning
        yield from _keys_below(below, at)


def _keys_below(schema: Mapping[str, Any], path: str) -> Iterator[Row]:
    yield from _keys(schema, path)
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _keys_below(each, path)
    if isinstance(items := schema.get("items"), dict):
        yield from _keys_below(items, f"{path}[]")
    others = (schema.get("additionalProperties"), *schema.get("patternProperties", {}).values())
    for each in others:
        if isinstance(each, dict):
            yield from _keys_below(each, f"{path}.NAME")


def _type(schema: Mapping[str, Any]) -> str:
    """What a value may be, in words; null means that the key may stand without a value."""
    if "anyOf" in schema or "oneOf" in schema:
        found = [_type(one) for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))]
        return " or ".join(dict.fromkeys(one for one in found if one))
    if "enum" in schema:
        return ", ".join(
            code(str(value).lower() if isinstance(value, bool) else str(value)) for value in schema["enum"]
        )
    if "const" in schema:
        return code(str(schema["const"]))
    kinds = schema.get("type", "")
    named = [kinds] if isinstance(kinds, str) else list(kinds)
    shown = " or ".join(kind for kind in named if kind != "null")
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{shown} {low:g} to {high:g}"
    return f"{shown} from {low:g}" if low is not None else shown


# --- Into the docs ----------------------------------------------------------------------------------------------------

TABLES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "reasons": ("docs/reasons.md", reasons),
    "codes": ("docs/reasons.md", codes),
    "request-log": ("docs/logs.md", lambda: log_fields(REQUEST_FIELDS.names)),
    "usage-record": ("docs/logs.md", lambda: log_fields(USAGE_FIELDS.names)),
    "metrics": ("docs/metrics.md", metrics),
    "admin-api": ("docs/operations.md", admin_api),
    "configuration": ("docs/configuration.md", lambda: keys(config_schema())),
    "policy": ("docs/policy.md", lambda: keys(policy_schema())),
}
"""By marker: the page that has it, and what stands there."""


def written(page: str, text: str, made: Mapping[str, str]) -> str:
    """Return a page with its tables as they should be. Raises KeyError for a marker without a table."""

    def put(found: re.Match[str]) -> str:
        assert TABLES[found[2]][0] == page, f"{found[2]} belongs to {TABLES[found[2]][0]}"
        return f"{found[1]}{made[found[2]]}{found[3]}"

    return MARKED.sub(put, text)


def pages() -> dict[Path, str]:
    """Return each page that has a generated table, as it should be. Raises ValueError where a marker is missing."""
    made = {name: make() for name, (_, make) in TABLES.items()}
    found = {}
    for page in dict.fromkeys(page for page, _ in TABLES.values()):
        text = (ROOT / page).read_text(encoding="utf-8")
        marked = {name for _, name, _ in MARKED.findall(text)}
        if missing := {name for name, (where, _) in TABLES.items() if where == page} - marked:
            raise ValueError(f"{page}: no <!-- generated: {min(missing)} -->")
        found[ROOT / page] = written(page, text, made)
    return found
