"""Edits the text of one config list and keeps its comments and spacing. The only file that imports libcst.

Takes and gives the text of an expression; where it stands in a file is ``rewrite.py``'s affair.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from orchestrator.errors import VariantError
from orchestrator.variant.autotune import LAUNCH_KNOBS, POSITIONAL_KNOBS, Config

if TYPE_CHECKING:
    import libcst as cst

Value: TypeAlias = "int | float | bool | str | None"

BY_HAND = "edit the working copy by hand with `orch variant edit`"

_Entry = TypeVar("_Entry", bound="cst.Arg | cst.BaseDictElement")


def shortened_list(text: str, first: Config, values: Mapping[str, Value]) -> str:
    """The text of a list or tuple with its first entry edited and the others gone.

    Args:
        text: as written, brackets included.
        first: the first entry, as read.
        values: knob → value.

    Raises:
        VariantError: it is written in a way that cannot be edited without changing its format.
    """
    import libcst as cst

    module, sequence = _parsed(text)
    if not isinstance(sequence, cst.List | cst.Tuple):
        raise VariantError("this list cannot be edited", next_step=BY_HAND)
    elements = sequence.elements
    entry = elements[0].with_changes(value=_with_values(elements[0].value, first, values))
    if len(elements) > 1:
        is_needed = isinstance(sequence, cst.Tuple) or isinstance(elements[-1].comma, cst.Comma)
        entry = entry.with_changes(comma=cst.Comma() if is_needed else cst.MaybeSentinel.DEFAULT)
        sequence = _closed_after(sequence, elements[0].comma)
    return module.code_for_node(sequence.with_changes(elements=[entry]))


def edited_config(text: str, config: Config, values: Mapping[str, Value]) -> str:
    """The text of one ``Config(…)`` call with knobs set.

    Raises:
        VariantError: it is written in a way that cannot be edited.
    """
    module, call = _parsed(text)
    return module.code_for_node(_with_values(call, config, values))


def _parsed(text: str) -> tuple[cst.Module, cst.BaseExpression]:
    import libcst as cst

    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as exc:
        raise VariantError(f"this list cannot be edited ({exc.message})", next_step=BY_HAND) from exc
    statement = module.body[0]
    expression = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if module.code != text or len(module.body) != 1 or not isinstance(expression, cst.Expr):
        raise VariantError("this list cannot be edited without changing its format", next_step=BY_HAND)
    return module, expression.value


def _closed_after(sequence: cst.List | cst.Tuple, comma: cst.Comma | cst.MaybeSentinel) -> cst.List | cst.Tuple:
    """The list whose closing bracket follows the first entry's comment in place of the last entry's."""
    import libcst as cst

    after_first = comma.whitespace_after if isinstance(comma, cst.Comma) else None
    if isinstance(sequence, cst.List):
        space = _closing_space(sequence.rbracket.whitespace_before, after_first)
        return sequence.with_changes(rbracket=sequence.rbracket.with_changes(whitespace_before=space))
    if not sequence.rpar:
        return sequence
    bracket = sequence.rpar[0]  # the tuple's own; further ones are brackets around it
    space = _closing_space(bracket.whitespace_before, after_first)
    return sequence.with_changes(rpar=[bracket.with_changes(whitespace_before=space), *sequence.rpar[1:]])


def _closing_space(
    before_bracket: cst.BaseParenthesizableWhitespace, after_first: cst.BaseParenthesizableWhitespace | None
) -> cst.BaseParenthesizableWhitespace:
    import libcst as cst

    comment_line = after_first.first_line if isinstance(after_first, cst.ParenthesizedWhitespace) else None
    if isinstance(before_bracket, cst.ParenthesizedWhitespace):
        plain_line = cst.TrailingWhitespace(newline=before_bracket.first_line.newline)
        return before_bracket.with_changes(first_line=comment_line or plain_line)
    if after_first is not None and comment_line is not None and comment_line.comment is not None:
        return after_first.with_changes(empty_lines=())
    return before_bracket


# ---- one config


def _with_values(call: cst.BaseExpression, config: Config, values: Mapping[str, Value]) -> cst.Call:
    """The ``Config(…)`` call with every value set that is not there already."""
    import libcst as cst

    if not isinstance(call, cst.Call):
        raise VariantError("the first config cannot be edited", next_step=BY_HAND)
    for name, value in values.items():
        present = config.knobs.get(name)
        if present is None:
            _refuse_hidden(config, name)
        if isinstance(present, ast.Constant) and type(present.value) is type(value) and present.value == value:
            continue
        call = _with_value(call, name, value)
    return call


def _refuse_hidden(config: Config, name: str) -> None:
    """A knob that is absent may still be inside ``**settings``; adding it would give it twice."""
    is_own = name in LAUNCH_KNOBS
    hiding = [what for what in config.extras if (what == "meta-parameters") != is_own and what != "pre_hook"]
    if hiding and hiding != ["ir_override"]:
        raise VariantError(
            f"the first config does not show all of its knobs ({', '.join(hiding)}), so {name} cannot be added",
            next_step=BY_HAND,
        )


def _with_value(call: cst.Call, name: str, value: Value) -> cst.Call:
    args = list(call.args)
    i = _place_of(args, name)
    if i is not None:
        args[i] = args[i].with_changes(value=_literal_node(value, args[i].value))
    elif name in LAUNCH_KNOBS:
        args = _appended(args, _new_argument(name, value))
    else:
        i = next((i for i, a in enumerate(args) if a.keyword is None or a.keyword.value == "kwargs"), None)
        if i is None:
            raise VariantError(f"the first config has no meta-parameters to add {name} to", next_step=BY_HAND)
        args[i] = args[i].with_changes(value=_with_meta(args[i].value, name, value))
    return call.with_changes(args=args)


def _place_of(args: Sequence[cst.Arg], name: str) -> int | None:
    """Which argument gives a keyword knob, by its keyword or by its position."""
    for i, argument in enumerate(args):
        if argument.keyword is not None and argument.keyword.value == name:
            return i
    position = POSITIONAL_KNOBS.index(name) + 1 if name in POSITIONAL_KNOBS else len(args)
    is_positional = position < len(args) and args[position].keyword is None and not args[position].star
    return position if is_positional else None


def _with_meta(meta: cst.BaseExpression, name: str, value: Value) -> cst.BaseExpression:
    """The dict of meta-parameters with one of them set, or added at its end."""
    import libcst as cst

    if isinstance(meta, cst.Call):
        args = list(meta.args)
        i = next((i for i, a in enumerate(args) if a.keyword is not None and a.keyword.value == name), None)
        if i is None:
            return meta.with_changes(args=_appended(args, _new_argument(name, value)))
        args[i] = args[i].with_changes(value=_literal_node(value, args[i].value))
        return meta.with_changes(args=args)
    if not isinstance(meta, cst.Dict):
        raise VariantError(f"the first config computes its meta-parameters, so {name} cannot be set", next_step=BY_HAND)
    elements = list(meta.elements)
    places = [i for i, element in enumerate(elements) if _has_key(element, name)]
    for i in places:
        elements[i] = elements[i].with_changes(value=_literal_node(value, elements[i].value))
    return meta.with_changes(elements=elements if places else _appended(elements, _new_element(elements, name, value)))


def _has_key(element: cst.BaseDictElement, name: str) -> bool:
    import libcst as cst

    key = element.key if isinstance(element, cst.DictElement) else None
    return isinstance(key, cst.SimpleString | cst.ConcatenatedString) and key.evaluated_value == name


def _new_argument(name: str, value: Value) -> cst.Arg:
    import libcst as cst

    nothing = cst.SimpleWhitespace("")
    equal = cst.AssignEqual(whitespace_before=nothing, whitespace_after=nothing)
    return cst.Arg(keyword=cst.Name(name), value=_literal_node(value, None), equal=equal)


def _new_element(elements: Sequence[cst.BaseDictElement], name: str, value: Value) -> cst.DictElement:
    import libcst as cst

    first_key = elements[0].key if elements and isinstance(elements[0], cst.DictElement) else None
    quote = "'" if isinstance(first_key, cst.SimpleString) and first_key.value.startswith("'") else '"'
    return cst.DictElement(key=cst.SimpleString(f"{quote}{name}{quote}"), value=_literal_node(value, None))


def _appended(entries: Sequence[Any], new: Any) -> list[Any]:
    """Arguments or dict entries with one more at the end, spaced like those before it; comments stay where they are."""
    import libcst as cst

    if not entries:
        return [new]
    last = entries[-1]
    separator = entries[-2].comma if len(entries) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    separator, closing = _without_comment(separator), last.comma
    if isinstance(closing, cst.Comma) and isinstance(closing.whitespace_after, cst.ParenthesizedWhitespace):
        if isinstance(separator.whitespace_after, cst.ParenthesizedWhitespace):
            first_line = closing.whitespace_after.first_line
            separator = separator.with_deep_changes(separator.whitespace_after, first_line=first_line)
        closing = _without_comment(closing)
    if isinstance(last, cst.Arg):
        new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    return [*entries[:-1], last.with_changes(comma=separator), new.with_changes(comma=closing)]


def _without_comment(comma: cst.Comma) -> cst.Comma:
    import libcst as cst

    space = comma.whitespace_after
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return comma
    plain_line = cst.TrailingWhitespace(newline=space.first_line.newline)
    return comma.with_changes(whitespace_after=space.with_changes(first_line=plain_line, empty_lines=()))


def _literal_node(value: Value, replaced: cst.BaseExpression | None) -> cst.BaseExpression:
    """A value as Python writes it; a text in the quotes of the text that it replaces."""
    import libcst as cst

    text = repr(value)
    is_single = isinstance(replaced, cst.SimpleString) and replaced.value.startswith("'")
    if isinstance(value, str) and not is_single and '"' not in value and "\\" not in text:
        text = f'"{value}"'
    return cst.parse_expression(text)
