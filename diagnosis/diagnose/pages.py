"""A page for each recipe, in Markdown, and their index: what docs/doctor/ holds. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from diagnosis.finding import Severity
from diagnosis.readings import (
    CACHE_CONFIG,
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    SPECULATION,
    TRANSFER_COUNTERS,
    TRANSFER_SUMS,
)
from diagnosis.recipe import Recipe
from diagnosis.recipes.registry import BY_NAME, DRAINABLE, RECIPES

INDEX = "README.md"

_HEAD = """\
# Recipes of the doctor

Stability: experimental. Generated from `diagnosis/recipes/` by `make reference`; do not edit.

Each recipe is one known fault of a fleet. A finding is raised after 15 to 45 s of evidence, up to 15 s later while
there is evidence of its cause, and cleared 20 s after the last. Figures that are missing, too old or too few make a
recipe `unknown`, never healthy. What is found of faults that are injected into simulated pods is kept in
`bench/doctor/last.txt` (`make bench-doctor`).

| recipe | question | severity | symptom |
|---|---|---|---|
"""

SEVERITIES: Mapping[Severity, str] = {
    Severity.FAILING: "failing: requests fail, or wait without progress",
    Severity.DEGRADING: "degrading: requests are slower than they have to be",
    Severity.ADVICE: "advice: nothing is slower yet",
}


def pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    texts = {file_name(recipe): page(recipe) for recipe in RECIPES}
    return {INDEX: index()} | texts


def file_name(recipe: Recipe) -> str:
    """Return the name of a recipe's page."""
    return f"{recipe.name.replace('_', '-')}.md"


def index() -> str:
    """Return the index: recipes in the order of their names."""
    rows = (
        f"| [{recipe.name}]({file_name(recipe)}) | {recipe.question} | {recipe.severity} | {recipe.symptom} |\n"
        for recipe in sorted(RECIPES, key=lambda each: each.name)
    )
    return _HEAD + "".join(rows)


def page(recipe: Recipe) -> str:
    """Return the page of one recipe."""
    causes = sorted(other.name for other in RECIPES if recipe.name in other.explains)
    sections = (
        ("Symptom", recipe.symptom),
        ("Evidence", recipe.looks_at),
        ("Confirm by hand", _confirm(recipe)),
        ("Cause", recipe.cause),
        ("First step", recipe.first_step),
        ("How to see that it helped", recipe.helped),
        ("If the finding is wrong", recipe.wrong_if),
        ("Draining", _draining(recipe)),
        ("Brings about", _links(recipe.explains)),
        ("May be brought about by", _links(causes)),
    )
    text = (
        f"# {recipe.title}\n\n`{recipe.name}`. Question: {recipe.question}. Severity: {SEVERITIES[recipe.severity]}. "
        f"Raised after {recipe.raise_after_s:.0f} s of evidence.\n"
    )
    return text + "".join(f"\n## {heading}\n\n{body}\n" for heading, body in sections if body)


METRICS = frozenset(
    name.partition(" ")[0]
    for name in (
        *GAUGES.values(),
        *(name for names in COUNTERS.values() for name in names),
        *HISTOGRAMS.values(),
        *SPECULATION.values(),
        *TRANSFER_SUMS.values(),
        *TRANSFER_COUNTERS.values(),
        CACHE_CONFIG,
    )
)
"""Names of samples that diagnosis reads, without `vllm:` and `_total`."""


def _confirm(recipe: Recipe) -> str:
    """Return how the figures and options that a recipe's evidence names are read without the gateway."""
    named = dict.fromkeys(re.findall(r"`([a-z_]+)[`{]", recipe.looks_at))
    metrics = [name for name in named if name in METRICS or name.removesuffix("_total") in METRICS]
    options = [f"`{option}`" for option in dict.fromkeys(re.findall(r"`(--[a-z-]+)`", recipe.looks_at))]
    parts = []
    if metrics:
        command = f"curl -s POD/metrics | grep -E '^(vllm:)?({'|'.join(metrics)})'"
        parts.append(
            "Read these twice, half a minute apart, at a named pod and at another one of its pool; of counters and "
            f"histograms compare the growth.\n\n```sh\n{command}\n```"
        )
    if options:
        parts.append(f"Compare the command lines of a named pod and of another one: {', '.join(options)}.")
    return "\n\n".join(parts)


def _draining(recipe: Recipe) -> str:
    return "A pod may be drained for it (`doctor.drain_findings`)." if recipe.name in DRAINABLE else ""


def _links(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"[{name}]({file_name(BY_NAME[name])})" for name in names)
