"""An autotune list that is written out, read without running anything: most lists are, and a process is saved. Pure."""

from __future__ import annotations

import ast
from typing import Any

from orchestrator.verdicts import Constant, KernelConfig, KernelSource

_POSITIONAL = ("num_warps", "num_stages", "num_ctas")
"""What may follow a config's dict without a keyword; later positions differ between Triton versions."""

PlainList = tuple[tuple[KernelConfig, ...], tuple[str, ...] | None]


def read_plain_list(listing: KernelSource) -> PlainList | None:
    """The configs and the key that a listing ends with; None unless both are plain values.

    Args:
        listing: as ``lift`` gives it.
    """
    values: dict[str, ast.expr] = {}
    for statement in ast.parse(listing.text).body:
        if isinstance(statement, ast.Try) and "_orch_" in ast.unparse(statement):
            values.update(_assignments(statement.body))
        else:
            values.update(_assignments([statement]))
    configs, key = values.get("_orch_configs"), values.get("_orch_key")
    if not isinstance(configs, ast.List | ast.Tuple):
        return None
    try:
        names = None if key is None else tuple(str(name) for name in ast.literal_eval(key))
        return tuple(_config(entry) for entry in configs.elts), names
    except ValueError:
        return None


def _assignments(statements: list[ast.stmt]) -> dict[str, ast.expr]:
    return {
        target.id: statement.value
        for statement in statements
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id in ("_orch_configs", "_orch_key")
    }


def _config(entry: ast.expr) -> KernelConfig:
    """One ``triton.Config(…)`` with plain values.

    Raises:
        ValueError: it is anything else.
    """
    if not isinstance(entry, ast.Call) or not entry.args or ast.unparse(entry.func).rsplit(".", 1)[-1] != "Config":
        raise ValueError(ast.unparse(entry))
    constants: Constant | dict[str, Constant] = ast.literal_eval(entry.args[0])
    given: dict[str, Any] = dict(zip(_POSITIONAL, map(ast.literal_eval, entry.args[1:]), strict=False))
    if len(entry.args) > 1 + len(_POSITIONAL):
        raise ValueError(ast.unparse(entry))
    for keyword in entry.keywords:
        if keyword.arg not in (*_POSITIONAL, "maxnreg"):
            raise ValueError(ast.unparse(entry))
        given[keyword.arg] = ast.literal_eval(keyword.value)
    is_plain = isinstance(constants, dict) and all(
        isinstance(name, str) and isinstance(value, bool | int | float | str | None)
        for name, value in constants.items()
    )
    if not is_plain or not all(type(value) is int for value in given.values() if value is not None):
        raise ValueError(ast.unparse(entry))
    return KernelConfig(constants=constants, **given)  # type: ignore[arg-type]
