"""An integer that Python does not convert is refused by the field that holds it."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.reading import read_request
from routing.reading.integers import MOST_DIGITS, long_integer
from routing.rejection import Reason, Refused
from routing.request import Api


@pytest.mark.parametrize("where", ["{}", "[1, {}]", '{{"a": {{"b": [{}]}}}}', "-{}"])
@pytest.mark.parametrize("name", ["seed", "top_k", "metadata", "unheard_of"])
def test_the_field_is_named(name: str, where: str) -> None:
    """At any depth, in fields that are read and in others; one digit less goes on."""
    for digits, is_refused in ((MOST_DIGITS, False), (MOST_DIGITS + 1, True), (100_000, True)):
        body = f'{{"model": "m", "user": "{"7" * 9999}", "{name}": {where.format("9" * digits)}}}'.encode()
        if not is_refused:
            assert read_request(Api.CHAT, body, request_id="r").body == body
            continue
        with pytest.raises(Refused) as refused:
            read_request(Api.CHAT, body, request_id="r")
        assert (refused.value.reason, refused.value.param) == (Reason.BAD_REQUEST, name)
        assert f"more than {MOST_DIGITS} digits" in refused.value.message


def test_the_bound_is_pythons() -> None:
    """As engines have it unless they were told otherwise."""
    assert sys.int_info.default_max_str_digits == MOST_DIGITS


@given(st.integers(0, 9000), st.integers(1, 9000), st.sampled_from(["text", "integer", "fraction"]))
def test_only_integers_count_wherever_they_stand(before: int, digits: int, kind: str) -> None:
    """Digits in a text or behind a point are as many as anyone likes."""
    number = "8" * digits
    value = {"text": f'"{number}"', "integer": number, "fraction": f"1.{number}"}[kind]
    body = f'{{"pad": "{"x" * before}", "n": {value}}}'.encode()
    json.loads(body, parse_int=str)
    assert long_integer(body) == ("n" if kind == "integer" and digits > MOST_DIGITS else None)
