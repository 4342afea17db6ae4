"""What lies on this machine: the inventory, results.db and the workspace. Reads only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import workspace
from orchestrator.doctor.findings import Finding, fail, failed_by, ok, warn
from orchestrator.errors import InventoryError, StoreError, WorkspaceError
from orchestrator.project import Project
from orchestrator.records import Snapshot, Target, short
from orchestrator.session import known_names
from orchestrator.store import SCHEMA_VERSION, OpenDeployment, Store


@dataclass(frozen=True, slots=True)
class OnRecord:
    """What the project remembers of a target; empty when there is no record, or it cannot be read.

    Attributes:
        names: digest → name of everything that the project knows.
        opened: deployments that are not concluded.
        nonces: of every lease that this project ever took on the target.
        error: why results.db cannot be read.
    """

    baseline: Snapshot | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    opened: tuple[OpenDeployment, ...] = ()
    n_trials: int = 0
    nonces: frozenset[str] = frozenset()
    error: StoreError | None = None


def open_project(inventory_path: str | Path) -> tuple[Project | None, Finding]:
    """The project, and whether its inventory loads."""
    try:
        project = Project.open(inventory_path)
    except InventoryError as exc:
        return None, failed_by("inventory", exc, f"correct {inventory_path}")
    inventory = project.inventory
    counts = {
        noun: len(section)
        for noun, section in {
            "host": inventory.hosts,
            "engine": inventory.engines,
            "target": inventory.targets,
            "workload": inventory.workloads,
        }.items()
    }
    words = ", ".join(f"{n} {noun}{'s' * (n != 1)}" for noun, n in counts.items())
    return project, ok("inventory", f"{inventory.path}: {words}")


def read_record(project: Project, target: Target) -> OnRecord:
    """What results.db says of the target."""
    if not project.db_path.exists():
        return OnRecord()
    try:
        with Store.open_read_only(project.db_path) as store:
            return OnRecord(
                store.baseline(target.name),
                known_names(project, store, target),
                tuple(store.open_deployments(target.name)),
                len(store.trials(target.name)),
                store.own_nonces(target.name),
            )
    except StoreError as exc:
        return OnRecord(error=exc)


def check_results(project: Project, recorded: OnRecord) -> Finding:
    """Whether results.db can be read and written."""
    path = project.db_path
    if recorded.error is not None:
        return failed_by("results.db", recorded.error, f"look at `ls -l {path}`")
    place = path if path.exists() else path.parent
    if not (os.access(place, os.W_OK) and os.access(path.parent, os.W_OK)):
        return fail("results.db", f"{place} cannot be written", f"look at `ls -ld {path.parent} {path}`")
    if not path.exists():
        return ok("results.db", f"{path} is not there yet: `orch pull` makes it")
    text = f"schema {SCHEMA_VERSION}, {recorded.n_trials} engine start{'s' * (recorded.n_trials != 1)} on record"
    return ok("results.db", f"{path}: {text}")


def check_workspace(project: Project, target: Target, recorded: OnRecord) -> Finding:
    """Whether the pristine copy is pristine, and every variant can be read."""
    root = project.variants_root
    if recorded.baseline is None and not (root / target.name).exists():
        return ok("workspace", f"nothing pulled yet: `orch pull {target.name}` fetches the baseline")
    try:
        baseline = workspace.read_baseline(root, target)
        unreadable = workspace.unreadable_variants(root, target)
        variants = workspace.list_variants(root, target)
    except WorkspaceError as exc:
        return failed_by("workspace", exc, f"run `orch pull {target.name}`")
    if unreadable:
        name, error = next(iter(unreadable.items()))
        step = error.next_step or f"`orch variant drop {name}`, or put its files back"
        return fail(
            "workspace", f"variant {name} cannot be read: {error.message}", step, [*map(str, unreadable.values())]
        )
    names = ", ".join(working.name for working in variants) or "none"
    text = f"{root / target.name}: baseline {short(baseline.digest)} as pulled, variants: {names}"
    if recorded.baseline is not None and recorded.baseline.digest != baseline.digest:
        text = f"{text}; results.db has baseline {short(recorded.baseline.digest)}"
        return warn("workspace", text, f"run `orch pull {target.name}`")
    return ok("workspace", text)
