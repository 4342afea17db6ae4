"""The shape of each section, and pydantic's refusals in plain words. The only file that imports pydantic.

The records of ``orchestrator.records`` are the shapes where the file and the record agree. A target is written more
freely than it is handed on, so it has a shape of its own here.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_type_hints

from annotated_types import MinLen

from orchestrator.inventory.problems import nearest, shown
from orchestrator.inventory.yaml_tree import KeyPath
from orchestrator.records import CheckSettings, Engine, Host, Launcher, SlurmSettings, Workload

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

Section = Literal["hosts", "targets", "engines", "workloads"]
SECTIONS: tuple[Section, ...] = ("hosts", "targets", "engines", "workloads")
TOP_LEVEL_KEYS = (*SECTIONS, "version")
VERSION = 1
LAUNCHER_KINDS: tuple[str, ...] = get_args(get_type_hints(Launcher)["kind"])

_FORBID: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One entry of a target's ``files``: a path on the host, and the dotted name the engine imports it by."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    path: str
    module: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEntry:
    """A target as it is written. ``host`` and ``engine`` may be left out where the inventory has one only."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    files: Annotated[tuple[FileEntry, ...], MinLen(1)]
    kernel: str | None = None
    module: str | None = None
    host: str | None = None
    engine: str | None = None
    check: CheckSettings = field(default_factory=CheckSettings)


_SHAPES: dict[Section, type[Any]] = {"hosts": Host, "targets": TargetEntry, "engines": Engine, "workloads": Workload}


@dataclass(frozen=True, slots=True)
class Misfit:
    """A value that its shape refuses: where (below the entry), and why in words."""

    path: KeyPath
    text: str


_INNER_SHAPES: dict[Section, dict[str, type[Any]]] = {
    "targets": {"files": FileEntry, "check": CheckSettings},
    "engines": {"launcher": Launcher},
    "hosts": {"slurm": SlurmSettings},
}
"""What an entry holds under these keys."""


def allowed_keys(section: Section) -> list[str]:
    """The keys that an entry of a section may have. ``name`` is not one: it is the entry's own key."""
    keys = [field.name for field in dataclasses.fields(_SHAPES[section]) if field.name != "name"]
    return sorted([*keys, "recipe"] if section == "workloads" else keys)


def fit(section: Section, name: str, fields: Mapping[str, Any]) -> tuple[Any | None, list[Misfit]]:
    """Checks one entry against its shape.

    Args:
        section: which shape.
        name: the entry's key, which becomes the record's name.
        fields: plain JSON values.

    Returns:
        The record and no misfits, or None and at least one.
    """
    from pydantic import ValidationError

    named = dict(fields) if section == "targets" else {**fields, "name": name}
    try:
        # as JSON, because only there a mapping may stand for a dataclass while "22" is still not a number
        return _adapter(section).validate_json(json.dumps(named), strict=True), []
    except ValidationError as exc:
        return None, list(_misfits(section, exc))


@functools.cache
def _adapter(section: Section) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(_SHAPES[section])


def _misfits(section: Section, exc: Any) -> Iterator[Misfit]:
    found = [
        Misfit(path := tuple(part for part in error["loc"] if part != "[key]"), _in_words(section, path, error))
        for error in exc.errors(include_url=False)
    ]
    # a misspelt key is one mistake, not also a missing one
    meant = {(misfit.path[:-1], misfit.text.partition("(did you mean ")[2].removesuffix("?)")) for misfit in found}
    for misfit in found:
        if not (misfit.text == _MISSING and (misfit.path[:-1], misfit.path[-1]) in meant):
            yield misfit


_MISSING = "missing"
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping of names to text",
    "mapping_type": "a mapping of names to text",
    "dataclass_type": "a mapping",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def _in_words(section: Section, path: KeyPath, error: ErrorDetails) -> str:
    kind, found = error["type"], shown(error.get("input"))
    if kind in {"unexpected_keyword_argument", "extra_forbidden"}:
        return _unknown_key(section, path)
    if kind in {"missing", "missing_argument", "missing_keyword_only_argument"}:
        return _MISSING
    if kind == "too_short":
        return "wanted at least one entry, found none"
    if kind == "literal_error":
        return _not_among(error)
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"wanted {words} {error['ctx'][bound]:g}, found {found}"
    if kind in _WANTED:
        return f"wanted {_WANTED[kind]}, found {found}"
    return f"{error['msg']}, found {found}"


def _unknown_key(section: Section, path: KeyPath) -> str:
    inner = _INNER_SHAPES.get(section, {}).get(str(path[0])) if len(path) > 1 else None
    allowed = allowed_keys(section) if inner is None else sorted(field.name for field in dataclasses.fields(inner))
    return f"unknown key; allowed: {', '.join(allowed)}{nearest(str(path[-1]), allowed)}"


def _not_among(error: ErrorDetails) -> str:
    allowed = [word.strip("' ") for word in str(error["ctx"]["expected"]).replace(" or ", ",").split(",")]
    return f"wanted one of {', '.join(allowed)}, found {shown(error['input'])}{nearest(str(error['input']), allowed)}"


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a whole inventory, for editors."""
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {"version": {"const": VERSION, "description": "Version of this file's layout."}}
    for section in SECTIONS:
        entry = _adapter(section).json_schema(ref_template="#/$defs/{model}")
        definitions.update(entry.pop("$defs", {}))
        definitions[section] = _as_written(section, entry)
        if section == "targets":
            check = definitions["CheckSettings"]["properties"]
            check["arch"] = {"anyOf": [{"type": ["string", "integer"]}, {**check["arch"], "items": {"type": "string"}}]}
            check["reference"] = {"anyOf": [{"type": "string"}, check["reference"]]}
        if section == "hosts":
            slurm = definitions["SlurmSettings"]["properties"]
            slurm["options"] = {"anyOf": [{"type": "string"}, slurm["options"]]}
        if section == "engines":
            launcher = definitions["Launcher"]["properties"]
            launcher["restart_command"] = {"anyOf": [{"type": "string"}, launcher["restart_command"]]}
        properties[section] = {
            "type": "object",
            "propertyNames": {"pattern": NAME_PATTERN},
            "additionalProperties": {"$ref": f"#/$defs/{section}"},
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "orch inventory",
        "type": "object",
        "properties": properties,
        "required": ["hosts"],
        "additionalProperties": False,
        "$defs": definitions,
    }


NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]*$"


def _as_written(section: Section, schema: dict[str, Any]) -> dict[str, Any]:
    """What the file allows beyond the record: no name, shorter forms, an empty entry where nothing is required."""
    schema["properties"].pop("name", None)
    schema["required"] = [key for key in schema.get("required", []) if key != "name"]
    if section == "targets":
        properties = schema["properties"]
        properties["files"]["items"] = {"anyOf": [{"type": "string"}, properties["files"]["items"]]}
        properties["check"] = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/CheckSettings"}]}
    if section == "engines":
        schema["properties"]["command"] = {"anyOf": [{"type": "string"}, schema["properties"]["command"]]}
        schema["properties"]["env"]["additionalProperties"] = {"type": ["string", "number"]}
        kinds = {"enum": [*LAUNCHER_KINDS, None]}
        schema["properties"]["launcher"] = {"anyOf": [kinds, {"$ref": "#/$defs/Launcher"}]}
    if section == "workloads":
        properties = schema["properties"]
        properties["recipe"] = {"type": "string", "description": "The workload that this one is, by another client."}
        properties["client_command"] = {"anyOf": [{"type": "string"}, properties["client_command"]]}
        properties["client_env"]["additionalProperties"] = {"type": ["string", "number"]}
    if schema["required"]:
        return schema
    return {"anyOf": [{"type": "null"}, schema]}
