"""YAML read within bounds: a short text cannot become a large value, and no key stands twice.

For every YAML file that an operator or a mounted volume hands us. Knows nothing of what the documents mean.
"""

from __future__ import annotations

from typing import Any

import yaml

NODES_BY_ALIAS = 10_000
"""So many nodes may come from aliases in any text; a long text may have more."""

NODES_BY_ALIAS_PER_CHARACTER = 4
"""A line such as `legal: {<<: *usual}` repeats some forty nodes in twenty characters."""

CHARACTERS_PER_NODE = 64
"""A longer scalar counts as several nodes: what follows an alias looks at each character again."""

LONGEST_NUMBER = 100
"""Characters. PyYAML takes quadratic time for `1:1:1...` and for more than 4,300 digits Python raises."""

DEEPEST = 64
"""Levels. PyYAML's time grows with the square of the depth."""

WITHIN_ITSELF = "stands within what it names"
TOO_MANY = "aliases repeat too much of this document: write it out, or use fewer"


class BoundedLoader(yaml.SafeLoader):
    """Rejects what PyYAML takes in silence: keys that stand twice, and aliases that multiply or hold themselves."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._most_by_alias = NODES_BY_ALIAS + NODES_BY_ALIAS_PER_CHARACTER * len(stream)
        self._by_alias = 0
        self._nodes = 0
        """Composed so far, what aliases repeat counted each time."""
        self._depth = 0
        self._nodes_of: dict[str, int] = {}
        """By anchor, once it is complete."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            self._repeat(event)
            return node
        if self._depth >= DEEPEST:
            raise yaml.composer.ComposerError(None, None, "nested too deeply", event.start_mark)
        before = self._nodes
        self._nodes += 1 + len(event.value) // CHARACTERS_PER_NODE if isinstance(event, yaml.ScalarEvent) else 1
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._nodes_of[event.anchor] = self._nodes - before
        return node

    def _repeat(self, event: Any) -> None:
        if event.anchor not in self._nodes_of:
            raise yaml.composer.ComposerError(None, None, f"*{event.anchor} {WITHIN_ITSELF}", event.start_mark)
        repeated = self._nodes_of[event.anchor]
        self._nodes += repeated
        self._by_alias += repeated
        if self._by_alias > self._most_by_alias:
            raise yaml.composer.ComposerError(None, None, TOO_MANY, event.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[object] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
            key = key_node.value
            if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"`{key}` stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Construct an int or a float. Raises `ConstructorError` for one of more than `LONGEST_NUMBER` characters."""
        if len(node.value) > LONGEST_NUMBER:
            words = f"a number must have at most {LONGEST_NUMBER} characters"
            raise yaml.constructor.ConstructorError(None, None, words, node.start_mark)
        found: int | float = (
            self.construct_yaml_int(node) if node.tag == "tag:yaml.org,2002:int" else self.construct_yaml_float(node)
        )
        return found

    yaml_constructors = {  # noqa: RUF012 - PyYAML looks here
        **yaml.SafeLoader.yaml_constructors,
        "tag:yaml.org,2002:int": construct_number,
        "tag:yaml.org,2002:float": construct_number,
    }


def load_yaml(text: str) -> Any:
    """Return what the text holds, as PyYAML's safe loader makes it.

    Raises `yaml.YAMLError`, `RecursionError`, and for a date or tag that makes no value whatever PyYAML raises.
    """
    return yaml.load(text, Loader=BoundedLoader)  # noqa: S506 - a subclass of SafeLoader


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the text's nodes with their places, None where it is empty. Raises as `load_yaml`."""
    return yaml.compose(text, Loader=BoundedLoader)
