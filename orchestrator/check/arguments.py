"""A kernel's parameters and what the inventory says of them → the signature that it is compiled with.

Follows Triton's launcher: what a value or a type becomes here is what passing it would become there. Pure.

Source: ``triton/runtime/jit.py`` (``KernelParam``, ``create_function_from_signature``, specialisation of values).
"""

from __future__ import annotations

import ast
import difflib
import fnmatch
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.check.lift import Lifted, Parameter
from orchestrator.check.triton_types import TYPES
from orchestrator.errors import UsageError
from orchestrator.verdicts import Constant, KernelConfig, Signature

LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Set by every config; a kernel may also take them as constexprs."""

_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[ *\d+(?: *, *\d+)* *\]>")
_NOTHING = object()
"""The inventory says nothing of a parameter: not the same as null."""


@dataclass(frozen=True, slots=True)
class _Type:
    """A type as it is written: ``*bf16:16`` is name ``*bf16`` and mark 16; the mark is None when there is none."""

    name: str
    mark: int | None

    @property
    def is_pointer(self) -> bool:
        return self.name.startswith("*")


@dataclass(slots=True)
class _Desk:
    """The signature under work, and what keeps it from being complete."""

    types: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    divisible: list[str] = field(default_factory=list)
    missing: list[Parameter] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def constant(self, parameter: Parameter, value: Constant) -> None:
        self.types[parameter.name] = "constexpr"
        self.constants[parameter.name] = value

    def typed(self, parameter: Parameter, name: str, *, is_divisible: bool) -> None:
        self.types[parameter.name] = name
        if is_divisible and parameter.is_alignment_specialised:
            self.divisible.append(parameter.name)


def signature(
    lifted: Lifted, arguments: Mapping[str, Constant], *, given_by_config: Collection[str], target: str
) -> Signature:
    """The signature of a kernel.

    Args:
        lifted: the kernel.
        arguments: ``check.arguments`` of the target: by name or pattern, a type or a value.
        given_by_config: names of meta-parameters that every config sets; they win over the inventory.
        target: name of the target, for messages.

    Returns:
        Types of all parameters in their order; constants without those that a config gives.

    Raises:
        UsageError: an entry fits no parameter or is no type, or parameters are left without one: all in one message.
    """
    desk = _Desk(wrong=list(_unfitting(lifted.parameters, arguments)))
    for parameter in lifted.parameters:
        if parameter.is_constexpr and parameter.name in {*given_by_config, *LAUNCH_OPTIONS}:
            desk.types[parameter.name] = "constexpr"
        elif parameter.is_constexpr:
            _constexpr(desk, parameter, _written(parameter, arguments))
        else:
            _argument(desk, parameter, _written(parameter, arguments))
    if desk.wrong:
        raise UsageError(
            f"check.arguments of {target} does not fit kernel {lifted.source.kernel}: {'; '.join(desk.wrong)}",
            next_step=f"correct targets.{target}.check.arguments in inventory.yaml",
        )
    if desk.missing:
        raise _missing(lifted, desk.missing, target)
    return Signature(types=desk.types, constants=desk.constants, divisible_by_16=tuple(desk.divisible))


def config_constants(lifted: Lifted, config: KernelConfig) -> dict[str, Constant]:
    """The constexprs that a config gives this kernel: its meta-parameters, and launch options that are parameters."""
    options: dict[str, Constant] = {name: getattr(config, name) for name in LAUNCH_OPTIONS}
    given = {**options, **config.constants}
    names = [parameter.name for parameter in lifted.parameters if parameter.is_constexpr]
    return {name: given[name] for name in names if name in given}


# ---- one parameter


def _constexpr(desk: _Desk, parameter: Parameter, value: object) -> None:
    if value is not _NOTHING and not (isinstance(value, str) and value.startswith("*")):
        desk.constant(parameter, value)  # type: ignore[arg-type]
    elif value is not _NOTHING:
        desk.wrong.append(f"{parameter.name} is a constexpr and takes a value, not the type {value}")
    else:
        _default(desk, parameter)


def _argument(desk: _Desk, parameter: Parameter, value: object) -> None:
    """A parameter that is no constexpr. As in Triton, a type in its annotation wins over the one that is given."""
    annotated = None if parameter.annotation in (None, "const") else parse_type(parameter.annotation or "")
    if value is _NOTHING and annotated is not None and parameter.default != "None":
        value = annotated.name
    if value is _NOTHING:
        _default(desk, parameter)
    elif isinstance(value, str):
        given = parse_type(value)
        if given is None:
            desk.wrong.append(f"{parameter.name}: {_no_type(value)}")
        else:
            _typed(desk, parameter, given, annotated)
    else:
        _launched(desk, parameter, value, annotated)  # type: ignore[arg-type]


def _default(desk: _Desk, parameter: Parameter) -> None:
    """What the launcher passes when it leaves the argument out."""
    try:
        value = ast.literal_eval(parameter.default or "-")
    except (ValueError, SyntaxError):
        value = desk
    if isinstance(value, bool | int | float | str | None):
        if parameter.is_constexpr:
            desk.constant(parameter, value)
        elif not isinstance(value, str):
            _launched(desk, parameter, value, None)
    if parameter.name not in desk.types:
        desk.missing.append(parameter)


def _typed(desk: _Desk, parameter: Parameter, given: _Type, annotated: _Type | None) -> None:
    """A type that was written. A pointer is taken as aligned, as tensors are, unless its mark says otherwise."""
    name = given.name if annotated is None else annotated.name
    if given.mark == 1 and not given.is_pointer and parameter.is_specialised:
        desk.constant(parameter, 1)
    elif given.is_pointer:
        desk.typed(parameter, name, is_divisible=given.mark != 1)
    else:
        desk.typed(parameter, name, is_divisible=given.mark == 16)


def _launched(desk: _Desk, parameter: Parameter, value: int | float | None, annotated: _Type | None) -> None:
    """A value that the launcher passes, and what Triton's launcher makes of it."""
    if value is None:
        desk.constant(parameter, None)
    elif value == 1 and type(value) is int and annotated is None and parameter.is_specialised:
        desk.constant(parameter, 1)
    else:
        is_divisible = type(value) is int and value % 16 == 0
        is_integer = annotated is None or (annotated.name[0] in "iu" and annotated.name != "i1")
        name = _type_of(value) if annotated is None else annotated.name
        desk.typed(parameter, name, is_divisible=is_divisible and is_integer)


def _type_of(value: int | float) -> str:
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, float):
        return "fp32"
    if -(2**31) <= value < 2**31:
        return "i32"
    return "i64" if value < 2**63 else "u64"


# ---- what is written


def parse_type(text: str) -> _Type | None:
    """A type in Triton's notation, or under the name that Triton's language or torch gives it; None when it is none."""
    body, colon, mark = text.strip().partition(":")
    stars = "*k" if body.startswith("*k") else "*" if body.startswith("*") else ""
    name = body[len(stars) :].rsplit(".", 1)[-1]
    canonical = TYPES.get(name)
    descriptor = _DESCRIPTOR.fullmatch(body)
    if descriptor and descriptor[1] in TYPES and not colon:
        return _Type(body, None)
    if canonical is None or (colon and mark not in {"1", "16"}):
        return None
    is_scalar_mark = not colon or stars or canonical[0] in "iu"
    return _Type(stars + canonical, int(mark) if colon else None) if is_scalar_mark else None


def _no_type(text: str) -> str:
    bare = text.strip("* ").partition(":")[0]
    near = difflib.get_close_matches(bare, [*TYPES], n=1)
    hint = f"; did you mean {near[0]}?" if near and near[0] != bare else ""
    return f"{json.dumps(text)} is no type (wanted such as *bf16, *fp32, i32, i32:16, i32:1{hint})"


def _is_pattern(key: str) -> bool:
    return any(character in key for character in "*?[")


def _written(parameter: Parameter, arguments: Mapping[str, Constant]) -> object:
    """What the inventory says of a parameter; ``_NOTHING`` when it says nothing."""
    if parameter.name in arguments:
        return arguments[parameter.name]
    for key, value in arguments.items():
        # a pattern that gives a type to the strides means those that are no constexprs
        is_meant = not (parameter.is_constexpr and isinstance(value, str) and parse_type(value))
        if _is_pattern(key) and is_meant and fnmatch.fnmatchcase(parameter.name, key):
            return value
    return _NOTHING


def _unfitting(parameters: Sequence[Parameter], arguments: Mapping[str, Constant]) -> Iterator[str]:
    names = [parameter.name for parameter in parameters]
    for key in arguments:
        if key in names or (_is_pattern(key) and fnmatch.filter(names, key)):
            continue
        near = difflib.get_close_matches(key, names, n=1)
        hint = f" (did you mean {near[0]}?)" if near else "" if _is_pattern(key) else f" (it has {', '.join(names)})"
        yield f"no parameter {'matches' if _is_pattern(key) else 'is called'} {key}{hint}"


# ---- what is missing


def _missing(lifted: Lifted, missing: Sequence[Parameter], target: str) -> UsageError:
    types = [parameter.name for parameter in missing if not parameter.is_constexpr]
    values = [parameter.name for parameter in missing if parameter.is_constexpr]
    wants = [f"the type{'s' * (len(types) > 1)} of {_listed(types)}"] if types else []
    wants += [f"the value{'s' * (len(values) > 1)} of {_listed(values)}"] if values else []
    computed = [name for name in values if name in lifted.heuristics]
    why = f" ({_listed(computed)}: computed by @triton.heuristics at launch)" if computed else ""
    line = ", ".join(dict.fromkeys(_example(parameter, missing) for parameter in missing))
    return UsageError(
        f"check cannot compile kernel {lifted.source.kernel}: it needs {' and '.join(wants)}{why}",
        next_step=f"add them under targets.{target}.check in inventory.yaml, with the types and values that the engine "
        f"passes, such as: arguments: {{{line}}}",
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _example(parameter: Parameter, missing: Sequence[Parameter]) -> str:
    """An entry that is a guess by name, for the user to correct; one pattern for many strides or pointers."""
    name = parameter.name.lower()
    if parameter.is_constexpr:
        is_flag = name.startswith(("is_", "has_", "use_", "even_"))
        return f"{parameter.name}: {'false' if is_flag else 'tl.bfloat16' if 'dtype' in name else '16'}"
    word = next((word for word in ("stride", "ptr") if word in name), None)
    n_alike = sum(word is not None and word in other.name.lower() and not other.is_constexpr for other in missing)
    key = f'"*{word}*"' if n_alike > MANY else parameter.name
    is_float = "scale" in name or name.startswith("eps")
    return f"{key}: {_GUESSES.get(word or '', 'fp32' if is_float else 'i32')}"


MANY = 3
"""So many strides or pointers are written out before a pattern is proposed."""

_GUESSES = {"stride": "i32:16", "ptr": '"*bf16"'}
