"""YAML text → plain values, with the line of every key. The only file that knows ruamel.yaml.

It knows nothing of hosts or targets. Scalars keep their text as written as well, because ``2.10`` in an environment
variable must not become ``2.1``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.inventory.problems import Problem, shown

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

KeyPath = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"


class _BadScalar(ValueError):
    """A scalar that the inventory has no use for; the text says why."""


@dataclass(slots=True)
class Tree:
    """A YAML document as plain values.

    Attributes:
        root: dicts, lists, str, int, float, bool and None; None for an empty document.
        lines: line (1 is the first) on which the key or list entry of a path begins.
        texts: scalars as they are written, by path.
        problems: duplicate keys, keys that are not text, tags that nobody here understands.
    """

    root: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, path: KeyPath) -> int:
        """Line of a path, or of its nearest ancestor that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def dotted(path: KeyPath) -> str:
    """``targets.flash_mla.files[0].path``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def parse(text: str) -> Tree:
    """Reads one YAML 1.2 document; everything that is wrong with it is in the tree's ``problems``."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    tree = Tree()
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as exc:
        tree.problems.append(_syntax_problem(exc))
        return tree
    except (YAMLError, RecursionError) as exc:
        # ruamel's own text of these quotes the file, which may hold a secret; its first line does not
        tree.problems.append(Problem(1, "", f"is not YAML ({str(exc).splitlines()[0]})"))
        return tree
    if node is not None:
        tree.root = _Converter(tree).value(node, ())
    return tree


def _syntax_problem(exc: Any) -> Problem:
    line = exc.problem_mark.line + 1 if exc.problem_mark else 1
    reason = exc.problem or "cannot be read"
    if "'\\t'" in reason:
        reason = "a tab, where YAML wants spaces"
    elif reason == "mapping values are not allowed here":
        reason = "a second ': ' in one value, or a wrong indent; quote a text that holds ': '"
    elif "undefined alias" in reason:
        reason += "; quote a text that begins with '*'"
    elif "another document" in reason:
        reason = "a second document ('---'); an inventory is one"
    return Problem(line, "", f"bad YAML: {reason}{_opened_at(exc, line)}")


def _opened_at(exc: Any, line: int) -> str:
    """Where the bracket or quote that was never closed was opened, when that is another line."""
    opened = exc.context_mark.line + 1 if exc.context_mark else line
    return f", {exc.context} that began on line {opened}" if opened != line else ""


class _Converter:
    """Walks the node graph once and fills the tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.open: set[int] = set()  # nodes being converted: an alias to one of them is a circle

    def value(self, node: Node, path: KeyPath) -> Any:
        self.tree.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self.open:
            self._complain(node, path, "an alias inside its own anchor")
            return None
        self.open.add(id(node))
        try:
            return self._by_kind(node, path)
        finally:
            self.open.discard(id(node))

    def _by_kind(self, node: Node, path: KeyPath) -> Any:
        from ruamel.yaml.nodes import MappingNode, ScalarNode

        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        return [self.value(entry, (*path, i)) for i, entry in enumerate(node.value)]

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        self.tree.texts[path] = node.value
        try:
            return _scalar_value(str(node.tag), node.value)
        except _BadScalar as exc:
            self._complain(node, path, str(exc))
            return node.value

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if str(key_node.tag) == _TAG + "merge":
                for source in self._merge_sources(value_node):
                    merged = {**self.value(source, path), **merged}
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            here = (*path, key)
            line = key_node.start_mark.line + 1
            if key in own:
                self._complain(key_node, here, f"given twice; first on line {first_lines[key]}")
                continue
            first_lines[key] = self.tree.lines[here] = line
            own[key] = self.value(value_node, here)
        return {**merged, **own}

    def _merge_sources(self, node: Node) -> Iterator[Node]:
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        for source in node.value if isinstance(node, SequenceNode) else [node]:
            if isinstance(source, MappingNode):
                yield source
            else:
                self._complain(source, (), "'<<' takes a mapping or a list of mappings")

    def _key(self, node: Node, path: KeyPath) -> str | None:
        from ruamel.yaml.nodes import ScalarNode

        if not isinstance(node, ScalarNode):
            self._complain(node, path, "a key must be text")
            return None
        return str(node.value)

    def _complain(self, node: Node, path: KeyPath, text: str) -> None:
        self.tree.problems.append(Problem(node.start_mark.line + 1, dotted(path), text))


def _scalar_value(tag: str, text: str) -> Any:
    """The plain value of a scalar; a date or YAML's ``=`` stays text."""
    kind = tag.removeprefix(_TAG)
    if kind in {"str", "timestamp", "value"}:
        return text
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind not in {"int", "float"}:
        raise _BadScalar(f"the tag {shown(tag)} is not understood; write a plain value")
    return _number(kind, text.replace("_", ""))


def _number(kind: str, text: str) -> int | float:
    try:
        if kind == "int":
            return int(text, 0 if text.lstrip("+-")[:2].lower() in {"0x", "0o", "0b"} else 10)
        number = float(text.replace(".inf", "inf").replace(".nan", "nan").replace(".Inf", "inf").replace(".NaN", "nan"))
    except ValueError as exc:
        raise _BadScalar(f"{shown(text)} is not a number; quote it to make it text") from exc
    if not math.isfinite(number):
        raise _BadScalar("wanted a finite number")
    return number
