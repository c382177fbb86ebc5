"""What holds for the repository as a whole: what may stand in it, what every test says, what stays in step."""

import ast
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.sources import FOLDERS, PURE, ROOT, SHIPPED, Source, parse, read_sources

NOT_OURS = frozenset(
    (
        *(".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"),
        *("build", "dist", "out", ".idea", ".vscode"),
    )
)
"""Folders that tools and people make, beside environments (`.venv...`); the same names stand in .gitignore."""

FORBIDDEN = re.compile(
    # Put together from pieces, so that this file may stand in the repository too.
    "|".join(
        (
            r"\b(?:py" + r"pi|test\.py" + r"pi)\.org\b",
            r"\bpython" + r"hosted\.org\b",
            r"\bdownload\.py" + r"torch\.org\b",
            r"\b(?:conda\.ana" + r"conda|registry\.np" + r"mjs)\.(?:org|com)\b",
            r"(?<![\w.~-])/wo" + r"rk/",
            r"(?<![\w.~-])/tmp/te" + r"am\b",
            r"(?<![\w.~-])/opt/(?:py" + r"pi|whe" + r"els)",
        )
    )
)
"""Which index packages come from is the affair of who installs; paths of one machine mean nothing on another."""

LARGEST_FILE = 500_000
"""Bytes. Traces and models stay outside; a picture in the README fits."""

WITHOUT_TEST_OF_THEIR_OWN: frozenset[str] = frozenset(
    # Recipes have a case each in one table: tests/diagnosis/recipes/test_registry.py asks that none is left out.
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "diagnosis" / "recipes").glob("*.py")
    if path.name not in {"__init__.py", "registry.py"}
)
"""Modules of the pure packages that are tested elsewhere, each with its reason beside it."""


MAY_SLEEP: frozenset[str] = frozenset(
    (
        "tests/deploy/demo.py",  # a load at a rate, for a person
        "tests/deploy/prometheus.py",  # another program that does not say when it has scraped
        "tests/deploy/record.py",  # a load at a rate, and a scrape a second
        "tests/deploy/scene.py",  # another program that does not say when it has found its pods
        "tests/scaling/local_scaler.py",  # polls as KEDA and the HPA do
        "tests/scaling/test_live.py",  # a scaler that lags, and a client's Retry-After
        "tests/scaling/waiting.py",  # another process that does not say when it has started
        "tests/doctor/stand.py",  # clients that pause, and a finding that takes as long as it takes
        "tests/vllm/test_doctor.py",  # the same
        "tests/page/stage.py",  # requests that keep ending, for a person
    )
)
"""Modules that must ask something again and again that cannot tell when it is ready, each with its reason beside it."""


def repository_files() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in NOT_OURS and not is_made(name))
        yield from (Path(folder, name) for name in sorted(names) if name != ".git")


def is_made(folder: str) -> bool:
    return folder.startswith(".venv") or folder.endswith(".egg-info")


def text_files() -> Iterator[tuple[str, str]]:
    for path in repository_files():
        try:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_nothing_names_an_index_or_a_path_of_one_machine() -> None:
    """No file says where packages come from or where somebody's checkout stands."""
    faults = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), start=1)
        if FORBIDDEN.search(line)
    ]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    "line",
    [
        "see https://py" + "pi.org/project/x",
        "--index-url https://download.py" + "torch.org/whl/cpu",
        "open('/wo" + "rk/main/x')",
        "find-links=/opt/whe" + "els",
    ],
)
def test_forbidden_words_are_detected(line: str) -> None:
    """The search above finds what it is there to find."""
    assert FORBIDDEN.search(line)


@pytest.mark.parametrize("line", ["https://example.org/work/main", "out/work/x", "cd ~/work/", "tmp/team"])
def test_harmless_words_pass(line: str) -> None:
    """A folder that happens to be called work is nobody's secret."""
    assert not FORBIDDEN.search(line)


def test_no_file_is_large() -> None:
    """No trace, model or recording has been committed by mistake."""
    large = [str(path) for path in repository_files() if path.lstat().st_size > LARGEST_FILE]
    assert not large


def test_every_test_says_what_it_shows() -> None:
    """Each test function has a docstring."""
    silent = [
        source.fault(function, f"{function.name} has no docstring")
        for source in read_sources("tests")
        for function in source.functions()
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ]
    assert not silent, "\n" + "\n".join(silent)


def sleeps(source: Source) -> Iterator[str]:
    """Sleeps that take time: sleep(0) only lets others run, in virtual time (simulator/clock.py) an hour is free."""
    if "from simulator.clock import" in source.text:
        return
    words = "a test waits on an event with a time limit, never on a clock (see MAY_SLEEP)"
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="sleep"), args=[ast.Constant(value=0)]):
                continue
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio" | "time"), attr="sleep")):
                yield source.fault(node, words)
            case ast.ImportFrom(module="asyncio" | "time", names=names) if any(name.name == "sleep" for name in names):
                yield source.fault(node, words)


def test_no_test_sleeps() -> None:
    """Tests wait for what they wait for, so they are neither slow nor lucky."""
    sources = read_sources("tests")
    asleep = [fault for source in sources if str(source.path) not in MAY_SLEEP for fault in sleeps(source)]
    assert not asleep, "\n" + "\n".join(asleep)
    assert {str(source.path) for source in sources} >= MAY_SLEEP


def test_sleeping_is_detected() -> None:
    """The search above finds every way to sleep, and lets sleep(0) and virtual time pass."""
    text = "asyncio.sleep(0)\nasyncio.sleep(0.1)\ntime.sleep(x)\nfrom asyncio import sleep"
    assert {fault.split(":")[1] for fault in sleeps(parse("tests/test_a.py", text))} == {"2", "3", "4"}
    assert not list(sleeps(parse("tests/test_a.py", f"from simulator.clock import run_virtually\n{text}")))


STANDALONE = frozenset({"packages/hearth-vllm-plugin/hearth_vllm_plugin.py"})
"""Distributions of one module that imports nothing of ours."""


def test_every_module_stands_in_a_known_folder() -> None:
    """Python outside the known folders would escape every rule."""
    strays = [
        str(path.relative_to(ROOT))
        for path in repository_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] not in FOLDERS
    ]
    assert set(strays) == STANDALONE


def test_every_pure_module_has_its_test() -> None:
    """The tests of the decisions mirror their tree: routing/blocks.py has tests/routing/test_blocks.py."""
    missing = []
    for source in read_sources(*PURE):
        mirror = ROOT / "tests" / source.path.parent / f"test_{source.path.name}"
        is_exempt = source.path.name == "__init__.py" or str(source.path) in WITHOUT_TEST_OF_THEIR_OWN
        if not is_exempt and not mirror.exists():
            missing.append(f"{source.path} has no {mirror.relative_to(ROOT)}")
    assert not missing, "\n" + "\n".join(missing)


def test_exceptions_are_still_needed() -> None:
    """A module exempt from having its test exists, and has none."""
    for name in WITHOUT_TEST_OF_THEIR_OWN:
        path = ROOT / name
        assert path.exists()
        assert not (ROOT / "tests" / Path(name).parent / f"test_{path.name}").exists()


def test_every_yaml_toml_and_json_file_parses() -> None:
    """What a machine reads can be read (Helm's templates are no YAML before Helm has been over them)."""
    seen = 0
    for path, text in text_files():
        seen += 1
        if path.endswith(".toml"):
            tomllib.loads(text)
        elif path.endswith(".json"):
            json.loads(text)
        elif path.endswith((".yaml", ".yml")) and "/templates/" not in path:
            assert list(yaml.safe_load_all(text)), path
    assert seen


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


UNPINNED = frozenset({"torch", "vllm"})
"""Extras of gigabytes that no test installs, whose versions are the engine's affair."""


def declared() -> list[Requirement]:
    """What pyproject.toml asks for, extras included, ourselves and those extras not."""
    table = project()["project"]
    extras = [lines for name, lines in table["optional-dependencies"].items() if name not in UNPINNED]
    lines = [*table["dependencies"], *(line for extra in extras for line in extra)]
    return [requested for requested in map(Requirement, lines) if requested.name != table["name"]]


def pinned() -> dict[str, str]:
    """Name to version, as constraints.txt has it; names as packaging compares them."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [re.fullmatch(r"([\w.-]+)==([\w.+!]+)", line) for line in lines if not line.startswith("#")]
    assert all(pairs), "constraints.txt holds exact versions only"
    return {canonical(pair[1]): pair[2] for pair in pairs if pair}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_requirement_has_a_floor_and_a_pin_above_it() -> None:
    """pyproject.toml and constraints.txt were resolved together (make lock)."""
    pins = pinned()
    for requested in declared():
        assert [clause.operator for clause in requested.specifier] == [">="], f"{requested} has no floor"
        assert requested.specifier.contains(pins[canonical(requested.name)]), (
            f"{requested} is not met by constraints.txt"
        )


def test_shipped_packages_are_typed_and_named_in_the_wheel() -> None:
    """A folder that ships says so in pyproject.toml and carries py.typed."""
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sorted(wheel["packages"]) == sorted(SHIPPED)
    for folder in SHIPPED:
        assert (ROOT / folder / "py.typed").exists()


def test_parse_names_the_file_of_a_syntax_error() -> None:
    """A source that does not parse is named, not just refused."""
    with pytest.raises(SyntaxError) as rejected:
        parse("routing/broken.py", "def (")
    assert rejected.value.filename == "routing/broken.py"
