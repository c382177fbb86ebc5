"""`retries` and `stalls`: what may be said of second attempts and of silence, and what is wrong with it."""

from __future__ import annotations

from gateway.config.settings import read_settings
from routing.retries import RetryTerms
from routing.stall_detection import StallBounds


def test_nothing_set_is_the_default() -> None:
    """Three attempts, a fifth more in the long run."""
    settings, root = read_settings("{}", {})
    assert (settings.retries, settings.stall_detection) == (RetryTerms(), StallBounds())
    assert not root.errors


def test_what_is_reported_stands_next_to_the_default() -> None:
    """Each word by itself."""
    source = (
        "retries: {max_attempts: 2, max_resumes: 0, budget_ratio: 0.1}\n"
        "stall_detection: {engine_min_s: 5}\ntimeouts: {resume_s: 7}"
    )
    settings, root = read_settings(source, {})
    assert settings.retries == RetryTerms(max_attempts=2, max_resumes=0, budget_ratio=0.1)
    assert settings.stall_detection == StallBounds(engine_min_s=5.0)
    assert settings.timeouts.resume_s == 7.0
    assert not root.errors


def test_what_is_wrong_is_reported_where_it_stands() -> None:
    """All of it at once."""
    source = (
        "retries: {max_attempts: 0, budget_ratio: 2, budget_burst: -1, max_resumes: 1.5, hedge: true}\n"
        "stall_detection: {factor: 0}"
    )
    _, root = read_settings(source, {})
    assert sorted(fault.path for fault in root.errors) == [
        "retries.budget_burst",
        "retries.budget_ratio",
        "retries.hedge",
        "retries.max_attempts",
        "retries.max_resumes",
        "stall_detection.factor",
    ]
