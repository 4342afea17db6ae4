"""What is compiled: a scratch module made of the lifted text, and its kernel with the types of the arguments.

Executes the user's module, so only ever in a child. Imports triton inside functions: the program does so first, with
the environment that it wants.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .failures import Failure, one_line

_TYPE = re.compile(
    r"\*?k?(i1|[iu](8|16|32|64)|B|fp(8e4nv|8e4b8|8e4b15|8e5|8e5b16|16|32|64)|bf16)|tensordesc<.+>|nvTmaDesc|constexpr"
)


# ---- the module


def load(path: Path) -> ModuleType:
    """Execute the lifted text.

    Raises:
        Failure: it does not run; of kind ``import`` when that is for want of a module.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with _recorded_imports(path.stem) as missing:
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise _why_not_loaded(error, path, missing) from error
    return module


@contextlib.contextmanager
def _recorded_imports(module_name: str) -> Iterator[list[str]]:
    """Modules that ``module_name`` tried to import in vain, even where it went on without them."""
    missing: list[str] = []
    original = builtins.__import__

    def recording(name: str, globals: Any = None, *rest: Any, **named: Any) -> Any:
        try:
            return original(name, globals, *rest, **named)
        except ModuleNotFoundError as error:
            if globals is not None and globals.get("__name__") == module_name:
                missing.append(name if name.startswith(error.name or name) else str(error.name))
            raise

    builtins.__import__ = recording
    try:
        yield missing
    finally:
        builtins.__import__ = original


def _why_not_loaded(error: BaseException, path: Path, missing: list[str]) -> Failure:
    if isinstance(error, ModuleNotFoundError):
        needed = missing[-1] if missing else error.name
        return Failure(f"needs the module {needed}, which is not installed", "import")
    place = _line_of(error, path)
    what = one_line(f"{type(error).__name__}: {error}")
    if missing:
        return Failure(f"needs the module {missing[0]}, which is not installed ({what}{place})", "import")
    if isinstance(error, ImportError):
        what = re.sub(r" \(.*\)$", "", str(error))  # the path of the module that lacks the name
        return Failure(f"{one_line(what)}{place}", "import")
    return Failure(f"the lifted module does not run: {what}{place}")


def _line_of(error: BaseException, path: Path) -> str:
    """`` at `LINE```: the last line of the module that was being executed; nothing when none was."""
    if isinstance(error, SyntaxError):
        return f" at `{one_line(error.text)}`" if error.text else ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line for frame in frames if frame.filename == str(path) and frame.line]
    return f" at `{one_line(lines[-1])}`" if lines else ""


def kernel_of(module: ModuleType, name: str) -> Any:
    """The jitted function under its name, out of whatever decorators are still around it.

    Raises:
        Failure: there is none.
    """
    from triton.runtime.jit import JITFunction

    found = getattr(module, name, None)
    while found is not None and not isinstance(found, JITFunction):
        found = getattr(found, "fn", None)
    if found is None:
        raise Failure(f"the lifted module defines no @triton.jit function {name}")
    return found


# ---- the autotune list


def configs_of(module: ModuleType) -> list[dict[str, Any]] | None:
    """The autotune list as the protocol writes it; None when the module has none."""
    configs = getattr(module, "_orch_configs", None)
    return None if configs is None else [_written_config(config) for config in configs]


def key_of(module: ModuleType) -> list[str] | None:
    """The autotune key; None when the module has none."""
    key = getattr(module, "_orch_key", None)
    return None if key is None else [str(name) for name in key]


def list_error(module: ModuleType) -> str | None:
    """Why the module could not compute its autotune list; None when it could, or has none."""
    error = getattr(module, "_orch_configs_error", None)
    return None if error is None else one_line(str(error))


def _written_config(config: Any) -> dict[str, Any]:
    return {
        "constants": {name: _written(name, value) for name, value in config.kwargs.items()},
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "num_ctas": getattr(config, "num_ctas", 1),
        "maxnreg": getattr(config, "maxnreg", None),
    }


def _written(name: str, value: Any) -> Any:
    import triton.language as tl

    if isinstance(value, tl.constexpr):
        value = value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    for attribute, known in vars(tl).items():
        if known is value:
            return f"tl.{attribute}"
    raise Failure(f"the autotune list gives {name} the value {one_line(repr(value))}, which cannot be written down")


def _read(value: Any) -> Any:
    import triton.language as tl

    if not (isinstance(value, str) and value.startswith("tl.")):
        return value
    try:
        return getattr(tl, value[3:])
    except AttributeError:
        raise Failure(f"triton.language has no {value[3:]}") from None


# ---- the kernel with its types


def typed_source(kernel: Any, job: Mapping[str, Any]) -> Any:
    """Triton's own source object for the kernel with the job's types, constants and divisibility.

    Raises:
        Failure: the job lacks an argument, or names one that the kernel has not.
    """
    from triton.compiler import ASTSource

    constants = _constants(kernel, job["constants"])
    types = {name: _type(name, constants, job["types"]) for name in kernel.arg_names}
    divisible = [name for name in job["divisible_by_16"] if name not in constants]
    _refuse_unknown(kernel, [*constants, *divisible])
    places = [kernel.arg_names.index(name) for name in divisible]
    try:
        from triton.backends.compiler import AttrsDescriptor
    except ImportError:
        return ASTSource(kernel, types, constants, {(place,): [["tt.divisibility", 16]] for place in places})
    # Triton 3.2
    types = {name: type_name for name, type_name in types.items() if name not in constants}
    described = {"cls": "AttrsDescriptor", "arg_properties": {"tt.divisibility": places, "tt.equal_to": []}}
    return ASTSource(kernel, types, constants, AttrsDescriptor.from_dict(described))


def _constants(kernel: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    constants = {name: _read(value) for name, value in given.items()}
    for parameter in kernel.params:
        if parameter.is_constexpr and parameter.name not in constants:
            if not parameter.has_default:
                raise Failure(f"no value for the constexpr {parameter.name} of {kernel.__name__}")
            constants[parameter.name] = parameter.default
    return constants


def _type(name: str, constants: Mapping[str, Any], types: Mapping[str, str]) -> str:
    if name in constants:
        return "constexpr"
    if name not in types:
        raise Failure(f"no type for the argument {name}")
    if not _TYPE.fullmatch(types[name]) or types[name] == "constexpr":
        raise Failure(f"the argument {name} cannot have the type {types[name]}")
    return types[name]


def _refuse_unknown(kernel: Any, names: list[str]) -> None:
    unknown = [name for name in names if name not in kernel.arg_names]
    if unknown:
        raise Failure(f"{kernel.__name__} has no argument {', '.join(unknown)}")
