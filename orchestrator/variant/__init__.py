"""Working copy → ``Variant``: what exactly it changes, and whether that is isolated. Touches no file and no host.

Takes the baseline's files and a working copy, gives a ``Variant`` that names every difference, found by comparing and
never by trust: an edit by hand and an edit by ``--set`` are looked at alike.

    source.py    bytes and syntax tree of a file        rewrite.py      one config with given knobs, into the bytes
    autotune.py  the kernel's list of configs           config_text.py  the text of that list
    compare.py   every difference, by name              units.py        the pieces of a module
    compare_lists.py  differences between two lists of configs    listing.py  the knobs of that list, for people
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.errors import VariantError
from orchestrator.records import Change, SourceFile, Variant, WorkingCopy, manifest_digest, short
from orchestrator.variant.compare import FUNCTION_PARTS, changes
from orchestrator.variant.listing import KnobList, has_function, list_knobs
from orchestrator.variant.rewrite import set_knobs

__all__ = [
    "KnobList",
    "changes",
    "describe",
    "has_function",
    "list_knobs",
    "make_variant",
    "set_knobs",
    "with_knobs",
]

SHOWN_VALUE_LENGTH = 40


def with_knobs(files: Sequence[SourceFile], kernel: str | None, settings: Mapping[str, str]) -> tuple[SourceFile, ...]:
    """A target's files with knobs set in the first, which holds the kernel; see ``set_knobs``.

    Raises:
        VariantError: no kernel, list or knob of that name, or a value that does not fit.
    """
    first, *others = files
    if kernel is None:
        raise VariantError(
            f"there are no knobs to set in {first.name}: its target names no kernel",
            next_step="leave --set out and edit the copy with `orch variant edit`, or add kernel: in inventory.yaml",
        )
    return (SourceFile.of(first.name, set_knobs(first.content, kernel, settings, first.name)), *others)


def make_variant(
    base: Sequence[SourceFile],
    working: WorkingCopy,
    kernel: str | None,
    *,
    only_knobs: bool = False,
    may_be_unchanged: bool = False,
) -> Variant:
    """Looks at a working copy and says everything in which it differs from its base.

    Args:
        base: files of the baseline that it was made from; the first holds the kernel, where there is one.
        working: the working copy.
        kernel: name of the kernel; None where there is none, so that every change is an edit of code or text.
        only_knobs: refuse anything but knobs of the kernel's autotune list; for a copy just made by setting knobs.
        may_be_unchanged: allow a copy that is still equal to its base.

    Raises:
        VariantError: it does not parse, is binary or not UTF-8, changes nothing, has other files than the base, was
            made from another base, or changes more than knobs although only those were to change.
    """
    _check_same_set(base, working)
    found: list[Change] = []
    for i, (old, new) in enumerate(zip(base, working.files, strict=True)):
        found += changes(old.content, new.content, new.name, kernel if i == 0 else None)
    variant = Variant(
        target=working.target,
        name=working.name,
        files=working.files,
        base_digest=working.base_digest,
        message=working.message,
        changes=tuple(found),
        edited_functions=_edited_functions(found),
        created_at=working.created_at,
    )
    if not found and not may_be_unchanged:
        raise VariantError(
            f"variant {working.name} changes nothing: its files are the baseline's ({short(working.base_digest)})",
            next_step=f"edit it with `orch variant edit {working.name}`, or set a knob to another value",
        )
    if only_knobs and not variant.is_isolated:
        raise VariantError(f"setting knobs would change more than knobs: {describe(variant)}")
    return variant


def _check_same_set(base: Sequence[SourceFile], working: WorkingCopy) -> None:
    base_names, names = [file.name for file in base], [file.name for file in working.files]
    if base_names != names:
        raise VariantError(
            f"variant {working.name} has the files {', '.join(names)}, its baseline {', '.join(base_names)}",
            next_step="make it again with `orch variant new`",
        )
    digest = manifest_digest((file.name, file.digest) for file in base)
    if digest != working.base_digest:
        raise VariantError(
            f"variant {working.name} was made from baseline {short(working.base_digest)}, not from {short(digest)}"
        )


def _edited_functions(found: Iterable[Change]) -> tuple[str, ...]:
    edited = [change.where for change in found if change.kind == "code" and change.name in FUNCTION_PARTS]
    return tuple(dict.fromkeys(edited))


def describe(variant: Variant) -> str:
    """One sentence: isolated or not, every knob with its values, and by name everything else that differs."""
    if not variant.changes:
        return "unchanged: the files are the baseline's"
    several_files = len(variant.files) > 1
    knobs = [_knob_words(change) for change in variant.changes if change.kind == "knob"]
    if variant.is_isolated:
        return f"isolated: {', '.join(knobs)}"
    others = [_other_words(change, several_files) for change in variant.changes if change.kind != "knob"]
    also = f"{', '.join(knobs)}; and it changes " if knobs else "it changes "
    return f"not isolated: {also}{', '.join(dict.fromkeys(others))}"


def _knob_words(change: Change) -> str:
    before, after = (_cut(text) for text in (change.before, change.after))
    if change.name == "config":
        return f"{change.where} removed ({before})" if change.after is None else f"{change.where} {before} → {after}"
    where = "" if change.where == "config 0" or not change.where.startswith("config ") else f"{change.where} "
    return f"{where}{change.name} {before} → {after}"


def _cut(text: str | None) -> str:
    if text is None:
        return "not set"
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_VALUE_LENGTH else text[: SHOWN_VALUE_LENGTH - 1] + "…"


def _other_words(change: Change, several_files: bool) -> str:
    where = f"{change.file}: " if several_files else ""
    if change.name == "function":
        verb = "adds" if change.before is None else "removes"
        return f"{where}{change.where} ({verb} it)"
    return f"{where}{change.where} ({change.name})"
