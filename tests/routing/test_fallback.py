"""Why requests go another way: a closed list, as metrics and receipts show it."""

from routing.fallback import Fallback


def test_reasons_are_words_fit_for_labels() -> None:
    """Lower case and underscores, each once."""
    assert all(reason.value == reason.name.lower() for reason in Fallback)
    assert len({reason.value for reason in Fallback}) == len(Fallback)
