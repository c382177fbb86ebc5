"""Renders chat templates as transformers and vLLM do. Templates are untrusted code and run in a sandbox.

Restated from transformers' `chat_template_utils.py` and vLLM's `renderers/hf.py`; the tests hold them side by side.
jinja2 comes with an extra, so it is imported where a template is made.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2 import Environment, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

ALWAYS_PASSED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

NEVER_PASSED = frozenset(
    {
        *("chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs", "conversation", "continue_final_message"),
    }
)
"""Arguments of transformers that are passed to no template."""

FINAL_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Appended to the message to be continued, to find its end in the rendered text; transformers uses the same."""


class CannotRenderError(Exception):
    """The template rejects these messages, or fails."""


class ChatTemplate:
    """One compiled template. `now`: the date for templates that print one."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime]) -> None:
        """Raises `CannotRenderError`, and `ModuleNotFoundError` where jinja2 is not installed."""
        from jinja2 import TemplateError, meta  # noqa: PLC0415 - an extra

        self._special_tokens = dict(special_tokens)
        environment = _environment(now)
        try:
            tree = environment.parse(source)
            self._compiled = environment.from_string(source)
        except TemplateError as error:
            raise CannotRenderError(f"the chat template cannot be compiled: {error}") from None
        self._variables = meta.find_undeclared_variables(tree)
        self.wants_parts = _walks_over_content(tree)
        """Whether the template takes content as a list of parts, otherwise as one text."""
        self.knows_developers = '"developer"' in source or "'developer'" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        settings: Mapping[str, Any],
        *,
        continue_final: bool = False,
    ) -> str:
        """Render the prompt. `settings`: further variables of the template. Raises `CannotRenderError`."""
        if continue_final:
            messages = [*messages[:-1], _marked(messages[-1])]
        shown = {
            name: value
            for name, value in settings.items()
            if name in self._variables | ALWAYS_PASSED and name not in NEVER_PASSED
        }
        fixed = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": False}
        try:
            text = self._compiled.render({**self._special_tokens, **fixed, **shown})
        except Exception as error:  # noqa: BLE001 - templates may fail in any way
            raise CannotRenderError(str(error)) from None
        return _cut_at_mark(text) if continue_final else text


def _environment(now: Callable[[], datetime]) -> Environment:
    """A sandbox with transformers' conventions."""
    from jinja2.ext import loopcontrols  # noqa: PLC0415 - an extra
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - an extra

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _generation() -> type[Extension]:
    """The tag `{% generation %}`, which marks assistant text for training; here its body passes unchanged."""
    from jinja2 import nodes  # noqa: PLC0415 - an extra
    from jinja2.ext import Extension  # noqa: PLC0415 - an extra

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - jinja2's own way

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

        def _as_it_is(self, caller: Callable[[], str]) -> str:
            return caller()

    return Generation


def _marked(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + FINAL_MARK}
    parts = [dict(part) for part in content or ()]
    for part in reversed(parts):
        if "text" in part:
            part["text"] += FINAL_MARK
            return {**message, "content": parts}
    raise CannotRenderError("the last message has no text to be continued")


def _cut_at_mark(text: str) -> str:
    at = text.rfind(FINAL_MARK.strip())
    if at < 0:
        raise CannotRenderError("the template leaves out the message that is to be continued")
    # A template that trims messages also trims the last space of the mark.
    return text[:at] if text[at : at + len(FINAL_MARK)] == FINAL_MARK else text[:at].rstrip()


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates call it with transformers' arguments
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError  # noqa: PLC0415 - an extra

    raise TemplateError(message)


# -- does the template look at the parts of a message? -----------------------------------------------------------------


def _walks_over_content(tree: nodes.Template) -> bool:
    """Whether the template iterates over a message's content, directly or in a macro; the rule is vLLM's."""
    from jinja2 import nodes  # noqa: PLC0415 - an extra

    messages = set(_names_of(tree, "messages"))
    items = {
        loop.target.name
        for loop in tree.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_is_access(loop.iter, name) for name in messages)
    }
    in_macros = dict(_macro_loops(tree, items))
    for loop in tree.find_all(nodes.For):
        if any(_is_access(loop.iter, name, "content") for name in items):
            return True
        if isinstance(loop.iter, nodes.Name):
            macro_names = in_macros.get(id(loop))
            if loop.iter.name in (macro_names if macro_names is not None else {"content"}):
                return True
    return False


def _macro_loops(tree: nodes.Template, items: set[str]) -> Iterator[tuple[int, set[str]]]:
    """Each loop inside a macro, with the arguments of the macro that some call passes a message's content."""
    from jinja2 import nodes  # noqa: PLC0415 - an extra

    for macro in tree.find_all(nodes.Macro):
        arguments = [argument.name for argument in macro.args]
        given: set[str] = set()
        for call in tree.find_all(nodes.Call):
            if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
                continue
            pairs = [*zip(arguments, call.args, strict=False), *((word.key, word.value) for word in call.kwargs)]
            given |= {
                name
                for name, value in pairs
                if name in arguments and any(_is_access(value, item, "content") for item in items)
            }
        for loop in macro.find_all(nodes.For):
            yield id(loop), given


def _names_of(tree: nodes.Template, name: str) -> Iterator[str]:
    """A variable, and all variables that it or a part of it is assigned to."""
    from jinja2 import nodes  # noqa: PLC0415 - an extra

    yield name
    related, seen = deque([name]), {name}
    while related:
        source = related.popleft()
        for assignment in tree.find_all(nodes.Assign):
            target = assignment.target
            if isinstance(target, nodes.Name) and target.name not in seen and _is_access(assignment.node, source):
                seen.add(target.name)
                related.append(target.name)
                yield target.name


def _is_access(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether a node is a variable (or its attribute `key`), possibly sliced, filtered or tested."""
    from jinja2 import nodes  # noqa: PLC0415 - an extra

    if isinstance(node, nodes.Filter | nodes.Test):
        return _is_access(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _is_access(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.name == name
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _is_access(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _is_access(node.node, name)
