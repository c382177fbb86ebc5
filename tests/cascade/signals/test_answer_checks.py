"""What is plainly wrong with an answer that has ended."""

from __future__ import annotations

import pytest

from cascade.signals.answer_checks import Fault, Whole, faults_of, is_refusal, repeats


@pytest.mark.parametrize(
    ("said", "faults"),
    [
        (Whole("The answer is 42.", finish_reason="stop"), ()),
        (Whole("  "), (Fault.EMPTY,)),
        (Whole("The answer", finish_reason="length"), (Fault.LENGTH,)),
        (Whole('{"a": 1}', is_json_asked=True), ()),
        (Whole('Sure! {"a": 1}', is_json_asked=True), (Fault.INVALID_JSON,)),
        (Whole('{"a": NaN}', is_json_asked=True), (Fault.INVALID_JSON,)),
        (Whole("[" * 50_000, is_json_asked=True), (Fault.INVALID_JSON, Fault.REPETITION)),
        (Whole('{"a": 1}', is_json_asked=True, schema={"required": ["b"]}), (Fault.SCHEMA,)),
        (Whole(calls=['{"city": "Oslo"}', ""]), ()),
        (Whole(calls=['{"city": "Os']), (Fault.TOOL_CALL,)),
        (Whole(calls=['"Oslo"']), (Fault.TOOL_CALL,)),
        (Whole(calls=['{"city": 3}'], call_schemas=[{"properties": {"city": {"type": "string"}}}]), (Fault.TOOL_CALL,)),
        (Whole("I'm sorry, but I can't help with that."), (Fault.REFUSAL,)),
        (Whole("I\u2019m sorry, I do not know."), (Fault.REFUSAL,)),
        (Whole("and so on " * 20, finish_reason="length"), (Fault.REPETITION, Fault.LENGTH)),
    ],
)
def test_faults(said: Whole, faults: tuple[Fault, ...]) -> None:
    """Each fault is seen, and a good answer has none."""
    assert faults_of(said) == faults


def test_a_letter_of_apology_is_no_refusal() -> None:
    """What stands inside of an answer is somebody else's voice."""
    letter = "Dear Ms Lovelace,\n" + "thank you for the engine which you have sent us in the spring. " * 4
    assert not is_refusal(letter + "I am sorry that it came late.")


@pytest.mark.parametrize(
    "text",
    [
        "- apples\n- pears\n- plums\n- apples\n- apples",
        "Row, row, row your boat",
        "-" * 300,
        "| a | b |\n" + "".join(f"| {n} | {n * n} |\n" for n in range(100)),
    ],
)
def test_lists_tables_and_rules_are_no_loops(text: str) -> None:
    """Things that are alike by nature may stand."""
    assert not repeats(text)


@pytest.mark.parametrize("text", ["no " * 40, "Step 1: add the two. Step 2: stop.\n" * 9, "a" * 500])
def test_loops_are_seen(text: str) -> None:
    """A model that has lost itself says the same until it is stopped."""
    assert repeats("It began well. " + text)
