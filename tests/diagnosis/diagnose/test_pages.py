"""The pages of the recipes."""

from __future__ import annotations

from diagnosis.diagnose.pages import INDEX, index, page, pages
from diagnosis.recipes.registry import BY_NAME, RECIPES
from tests.doctor_pages import FOLDER


def test_the_pages_in_the_docs_are_current() -> None:
    """`make reference` writes them."""
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")} == pages()


def test_a_page_has_all_that_its_recipe_says() -> None:
    """And leads to causes and consequences."""
    recipe = BY_NAME["slow_transfers"]
    text = page(recipe)
    for part in (recipe.symptom, recipe.looks_at, recipe.cause, recipe.first_step, recipe.helped, recipe.wrong_if):
        assert part in text
    assert "[transfer_queue](transfer-queue.md)" in text
    assert "[tcp_fallback](tcp-fallback.md)" in text


def test_a_page_says_how_to_read_the_evidence_without_the_gateway() -> None:
    """The samples and options that it names, and nothing that is neither."""
    assert "grep -E '^(vllm:)?(num_preemptions_total|kv_cache_usage_perc)'" in page(BY_NAME["kv_pressure"])
    limits = page(BY_NAME["unlike_limits"])
    assert "of another one: `--max-num-seqs`, `--max-model-len`." in limits
    assert "curl" not in limits
    assert "Confirm by hand" not in page(BY_NAME["clocks_apart"])


def test_the_index_names_every_recipe() -> None:
    """With its page."""
    assert all(f"[{recipe.name}]({recipe.name.replace('_', '-')}.md)" in index() for recipe in RECIPES)
    assert INDEX in pages()
