"""Chat templates as transformers renders them, and the question what form of content they look at."""

from datetime import UTC, datetime

import pytest

from gateway.kv_index.chat_templates import CannotRenderError, ChatTemplate


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, lambda: datetime(2026, 1, 2, tzinfo=UTC))


USER = [{"role": "user", "content": "Hi <b>&"}]


def test_conventions_of_transformers_hold() -> None:
    """Trimmed blocks, JSON as it is, dates, special tokens, loop controls, marks of training data."""
    source = (
        "{% for message in messages %}\n  {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{{ message | tojson }}{% endfor %}\n"
        "{% generation %}{{ bos_token }}{% endgeneration %}{{ strftime_now('%d') }}{{ tools is none }}"
    )
    text = template(source).render([*USER, *USER], None, {})
    assert text == '{"role": "user", "content": "Hi <b>&"}<s>02True'


def test_only_known_settings_reach_a_template() -> None:
    """What it asks for, and what is always there; nothing that transformers takes for itself."""
    source = "{{ enable_thinking }}{{ tokenize is defined }}{{ add_generation_prompt }}"
    settings = {"enable_thinking": False, "tokenize": True, "add_generation_prompt": True, "other": 1}
    assert template(source).render(USER, None, settings) == "FalseFalseTrue"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ messages[7].content.x.y }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_refuses_or_breaks_is_an_error_of_its_own(source: str) -> None:
    """Also one that wants out of its box, or would change what it is shown."""
    with pytest.raises(CannotRenderError):
        template(source).render(USER, None, {})


def test_a_template_that_is_none_is_told_at_once() -> None:
    """When it is loaded, not when somebody asks."""
    with pytest.raises(CannotRenderError, match="cannot be compiled"):
        template("{% for %}")


def test_a_message_can_be_continued() -> None:
    """The prompt ends where the message ends, also where a template trims it; content may be parts."""
    source = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    said = [*USER, {"role": "assistant", "content": "Once upon "}]
    assert template(source).render(said, None, {}, continue_final=True) == "[Hi <b>&][Once upon "
    trimmed = template("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}")
    assert trimmed.render(said, None, {}, continue_final=True) == "[Hi <b>&][Once upon"
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "Once"}]}]
    loops = template("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}!{% endfor %}")
    assert loops.render(parts, None, {}, continue_final=True) == "Once"
    with pytest.raises(CannotRenderError, match="leaves out"):
        template("x").render(said, None, {}, continue_final=True)
    with pytest.raises(CannotRenderError, match="no text"):
        template(source).render([{"role": "assistant", "content": None}], None, {}, continue_final=True)


@pytest.mark.parametrize(
    ("source", "wants_parts"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m.content | list %}{{ c }}{% endfor %}{% endfor %}", True),
        ("{% set all = messages[1:] %}{% for m in all %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}", True),
        ("{% macro f(c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}{{ f(tools) }}", False),
        (
            (
                "{% macro f(c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ f(m.content) }}{% endfor %}"
            ),
            True,
        ),
        (
            (
                "{% macro f(a, c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ f(1, c=m.content) }}{% endfor %}"
            ),
            True,
        ),
        ("{% for item in content %}{{ item }}{% endfor %}", True),
        ("{% for tool in tools %}{{ tool }}{% endfor %}", False),
    ],
)
def test_the_form_of_content_is_found_in_the_template(source: str, *, wants_parts: bool) -> None:
    """A loop over a message's content, however it is reached, wants parts; everything else wants a text."""
    assert template(source).wants_parts is wants_parts


def test_developers_are_known_by_name() -> None:
    """As vLLM looks for them."""
    assert template("{% if m.role == 'developer' %}{% endif %}").knows_developers
    assert not template("{{ messages }}").knows_developers
