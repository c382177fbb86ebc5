"""Settings that may be published: by name, and by the form of their value."""

import pytest

from routing.server_settings import FLAG_OPTIONS, NO_SEED, OPTION_FORMS, ServerSettings, permitted, permitted_settings


@pytest.mark.parametrize(
    ("name", "value", "is_kept"),
    [
        ("max-num-seqs", "8", True),
        ("max-num-seqs", "8k", False),
        ("enable-chunked-prefill", "false", True),
        ("enable-chunked-prefill", "sk-1", False),
        ("attention-backend", "FLASH_ATTN", True),
        ("attention-backend", "a/b", False),
        ("gpu-memory-utilization", "0.92", True),
        ("api-key", "1", False),
    ],
)
def test_a_value_has_the_form_of_its_kind(name: str, value: str, *, is_kept: bool) -> None:
    """Of an option that is listed."""
    assert (permitted([(name, value)], OPTION_FORMS) == {name: value}) is is_kept


def test_the_last_of_a_name_counts_where_it_is_permitted() -> None:
    """As on a command line."""
    assert permitted([("max-num-seqs", "8"), ("max-num-seqs", "16")], OPTION_FORMS) == {"max-num-seqs": "16"}


def test_digests_are_hex() -> None:
    """Or say that there is none."""
    kept = permitted_settings(ServerSettings(hash_seed=NO_SEED, model_digest="ab" * 8, model_revision="main"))
    assert (kept.hash_seed, kept.model_digest, kept.model_revision) == (NO_SEED, "ab" * 8, None)
    assert permitted_settings(ServerSettings(hash_seed="77")).hash_seed is None
    files = permitted_settings(ServerSettings(tokenizer_digest="/models/x", template_digest="cd" * 8))
    assert (files.tokenizer_digest, files.template_digest) == (None, "cd" * 8)


def test_flags_are_known_apart() -> None:
    """They take no value on the command line."""
    assert "enforce-eager" in FLAG_OPTIONS
    assert "max-num-seqs" not in FLAG_OPTIONS
