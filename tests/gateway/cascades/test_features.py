"""What a cascade reads of a client's body: any JSON, since engines reject what is wrong."""

from __future__ import annotations

import json

import pytest

from gateway.cascades.features import last_text, read_features
from routing.rejection import RequestRejected


@pytest.mark.parametrize("field", ["messages", "prompt", "input", "system"])
@pytest.mark.parametrize("kind", [[], {}, 5, None])
def test_a_part_may_have_any_type(field: str, kind: object) -> None:
    """Also in a field that the request's own API does not have, and that nobody has checked."""
    body = json.dumps({"model": "c", field: [{"type": kind, "content": [{"type": kind, "text": "What?"}]}]}).encode()
    assert read_features(body).prompt.images == 0
    assert last_text(body) == ("" if field == "system" else "What?")


def test_a_name_of_a_model_is_as_long_as_names_may_be() -> None:
    """Else the error would repeat all of it, however long."""
    body = json.dumps({"model": "c", "messages": [], "hearth": {"cascade_min_model": "m" * 257}}).encode()
    with pytest.raises(RequestRejected, match="cascade_min_model") as rejected:
        read_features(body)
    assert rejected.value.param == "hearth"
    assert len(rejected.value.message) < 200
