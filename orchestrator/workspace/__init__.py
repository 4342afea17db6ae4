"""The working tree ``variants/``: pristine baselines and working copies, as files. Knows no host and no syntax.

    variants/<target>/baseline            → .baselines/<12 hex of its digest>/files: the pristine copy, read-only
    variants/<target>/.baselines/<…>/     baseline.json and files/; older ones stay, so that a variant keeps its base
    variants/<target>/<variant>/          the target's files to edit, and variant.json
    variants/<target>/.dropped/<…>/       what was dropped; nothing is deleted

Takes a ``Snapshot``, gives it back after proving by digest that nobody edited it; gives ``WorkingCopy`` records. Every
write appears whole or not at all: it is prepared beside its place and renamed into it.
"""

from __future__ import annotations

from orchestrator.workspace.baseline import BASELINE, BaselineWrite, read_baseline, write_baseline
from orchestrator.workspace.differences import diff
from orchestrator.workspace.working_copies import (
    checked_variant_name,
    drop_variant,
    is_stale,
    list_variants,
    new_variant,
    read_working_copy,
    unreadable_variants,
    variant_folder,
)

__all__ = [
    "BASELINE",
    "BaselineWrite",
    "checked_variant_name",
    "diff",
    "drop_variant",
    "is_stale",
    "list_variants",
    "new_variant",
    "read_baseline",
    "read_working_copy",
    "unreadable_variants",
    "variant_folder",
    "write_baseline",
]
