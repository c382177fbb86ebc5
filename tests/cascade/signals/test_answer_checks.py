"""What is plainly wrong with an answer that has ended."""

from __future__ import annotations

import pytest

from cascade.signals.answer_checks import AnswerFault, CompleteAnswer, answer_faults, has_repetition, is_refusal


@pytest.mark.parametrize(
    ("stated", "faults"),
    [
        (CompleteAnswer("The answer is 42.", finish_reason="stop"), ()),
        (CompleteAnswer("  "), (AnswerFault.EMPTY,)),
        (CompleteAnswer("The answer", finish_reason="length"), (AnswerFault.LENGTH,)),
        (CompleteAnswer('{"a": 1}', is_json_requested=True), ()),
        (CompleteAnswer('Sure! {"a": 1}', is_json_requested=True), (AnswerFault.INVALID_JSON,)),
        (CompleteAnswer('{"a": NaN}', is_json_requested=True), (AnswerFault.INVALID_JSON,)),
        (CompleteAnswer("[" * 50_000, is_json_requested=True), (AnswerFault.INVALID_JSON, AnswerFault.REPETITION)),
        (CompleteAnswer('{"a": 1}', is_json_requested=True, schema={"required": ["b"]}), (AnswerFault.SCHEMA,)),
        (CompleteAnswer(calls=['{"city": "Oslo"}', ""]), ()),
        (CompleteAnswer(calls=['{"city": "Os']), (AnswerFault.TOOL_CALL,)),
        (CompleteAnswer(calls=['"Oslo"']), (AnswerFault.TOOL_CALL,)),
        (
            CompleteAnswer(calls=['{"city": 3}'], call_schemas=[{"properties": {"city": {"type": "string"}}}]),
            (AnswerFault.TOOL_CALL,),
        ),
        (CompleteAnswer("I'm sorry, but I can't help with that."), (AnswerFault.REFUSAL,)),
        (CompleteAnswer("I\u2019m sorry, I do not know."), (AnswerFault.REFUSAL,)),
        (CompleteAnswer("and so on " * 20, finish_reason="length"), (AnswerFault.REPETITION, AnswerFault.LENGTH)),
    ],
)
def test_faults(stated: CompleteAnswer, faults: tuple[AnswerFault, ...]) -> None:
    """Each fault is seen, and a good answer has none."""
    assert answer_faults(stated) == faults


def test_a_letter_of_apology_is_no_rejection() -> None:
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
    assert not has_repetition(text)


@pytest.mark.parametrize("text", ["no " * 40, "Step 1: add the two. Step 2: stop.\n" * 9, "a" * 500])
def test_loops_are_detected(text: str) -> None:
    """A model that has lost itself says the same until it is stopped."""
    assert has_repetition("It began well. " + text)
