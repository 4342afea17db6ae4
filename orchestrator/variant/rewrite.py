"""Forces a kernel's autotune list to one config with given knobs, and keeps every other byte of the file.

Only the list's own text is edited (``config_text.py``), and put back into the bytes where it stood. So nothing
outside the list can change.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Mapping

from orchestrator.errors import VariantError
from orchestrator.variant.autotune import LAUNCH_KNOBS, Autotune, Config, locate, module_names, read_config
from orchestrator.variant.config_text import BY_HAND, Value, edited_config, shortened_list
from orchestrator.variant.source import Source, parse


def set_knobs(content: bytes, kernel: str, settings: Mapping[str, str], file: str = "kernel.py") -> bytes:
    """Reduces the kernel's autotune list to one config and sets knobs in it.

    A list of one config is not benchmarked by Triton, so exactly this config runs. Knobs that are not named keep the
    value of the list's first config. A list that is computed cannot be known without running it: it is replaced by
    one config, and then every knob must be named. A module-level list that other code uses too is left alone, and
    this kernel gets a list of its own.

    Args:
        content: the file, UTF-8.
        kernel: name of the kernel function.
        settings: knob → value as Python writes it (``3``, ``True``, ``"ieee"``); a bare word where text is known.
        file: its name, for messages.

    Returns:
        The file with only that list changed.

    Raises:
        VariantError: no such kernel, list or knob, or a value that does not fit.
    """
    source = parse(content, file)
    autotune = locate(source, kernel)
    first = read_config(autotune.entries[0]) if autotune.entries else None
    configs = autotune.configs
    if first is None:
        first = _template_to_fill(source, autotune, settings)
        configs = [first]
    values = _values(source, autotune, configs, settings)
    if autotune.is_in_place and autotune.entries and autotune.entries[0] is first.call:
        replacement = shortened_list(source.text(autotune.list_node), first, values)
    else:
        replacement = f"[{edited_config(source.text(first.call), first, values)}]"
    return source.spliced(source.span(autotune.list_node), replacement.encode())


# ---- knobs and values


def _values(
    source: Source, autotune: Autotune, configs: Iterable[Config], settings: Mapping[str, str]
) -> dict[str, Value]:
    """The settings as typed values, each checked against what the configs hold now."""
    known: dict[str, list[ast.expr]] = {}
    for config in configs:
        for name, expression in config.knobs.items():
            known.setdefault(name, []).append(expression)
    values = {}
    for name, text in settings.items():
        if name not in known and name not in LAUNCH_KNOBS:
            raise _unknown_knob(source, autotune, name, known)
        values[name] = _typed(f"{source.file}: {autotune.kernel}", name, text, known.get(name, []))
    return values


def _unknown_knob(source: Source, autotune: Autotune, name: str, known: Iterable[str]) -> VariantError:
    knobs = [*known, *(knob for knob in LAUNCH_KNOBS if knob not in known)]
    near = difflib.get_close_matches(name, knobs, n=1)
    return VariantError(
        f"{source.file}: no config of {autotune.kernel} has a knob {name}{_why_unknown(source, autotune, name)}",
        next_step=f"{f'did you mean {near[0]}? ' if near else ''}knobs: {', '.join(knobs)}",
    )


def _why_unknown(source: Source, autotune: Autotune, name: str) -> str:
    for function in ast.walk(source.tree):
        if not (isinstance(function, ast.FunctionDef) and function.name == autotune.kernel):
            continue
        if any("heuristics" in ast.unparse(d) and repr(name) in ast.unparse(d) for d in function.decorator_list):
            return " (it is computed by @triton.heuristics)"
        arguments = [*function.args.args, *function.args.kwonlyargs]
        if name in [argument.arg for argument in arguments]:
            return " (the launch passes it, so a config may not)"
    return ""


def _typed(where: str, name: str, text: str, present: list[ast.expr]) -> Value:
    """A setting as a value of the kind that the configs hold already."""
    kinds = {type(e.value) for e in present if isinstance(e, ast.Constant) and e.value is not None}
    if name in LAUNCH_KNOBS:
        kinds = {int}
    value = _literal(text)
    if value is _NOT_A_LITERAL and str in kinds and re.fullmatch(r"[\w.+-]+", text):
        return text
    if value is _NOT_A_LITERAL or not isinstance(value, int | float | str | None):
        raise VariantError(f"{where}: {name}={text} is not a number, True, False, None or a quoted text")
    if value is not None and kinds and type(value) not in kinds and not (type(value) is int and float in kinds):
        wanted = " or ".join(sorted(_KIND_WORDS.get(kind, kind.__name__) for kind in kinds))
        raise VariantError(f"{where}: {name} takes {wanted}, and {text} is not")
    _check_launch_knob(where, name, value)
    return value


_KIND_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
_NOT_A_LITERAL = object()


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return {"true": True, "false": False, "none": None}.get(text.strip().lower(), _NOT_A_LITERAL)


def _check_launch_knob(where: str, name: str, value: Value) -> None:
    if name == "maxnreg" and value is None:
        return
    if name in LAUNCH_KNOBS and (value is None or not isinstance(value, int) or value < (name != "num_stages")):
        raise VariantError(f"{where}: {name} takes a whole number from {int(name != 'num_stages')}, and {value} is not")
    if name in {"num_warps", "num_ctas"} and isinstance(value, int) and value & (value - 1):
        raise VariantError(f"{where}: {name} takes a power of two, and {value} is not")


def _template_to_fill(source: Source, autotune: Autotune, settings: Mapping[str, str]) -> Config:
    """The config from which a computed list is made, when the settings name every knob of it."""
    written = re.sub(r"\s+", " ", ast.unparse(autotune.argument))
    where = f"{source.file}:{autotune.argument.lineno}: the configs of {autotune.kernel} are computed ({written[:60]})"
    template = autotune.template
    if template is None:
        raise VariantError(f"{where}, by something that this file does not define", next_step=BY_HAND)
    missing = [name for name in template.knobs if name not in settings]
    if missing:
        raise VariantError(
            f"{where}, and orch does not run them, so every knob must be set; missing: {', '.join(missing)}",
            next_step=" ".join(f"--set {name}=…" for name in missing),
        )
    known = module_names(source.tree)
    for what, expression in template.extras.items():
        used = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        if what not in {"pre_hook", "ir_override"} or used - known:
            raise VariantError(f"{where}; their {what} cannot be taken over", next_step=BY_HAND)
    return template
