"""``orch variant``: new, list, show, diff, edit, drop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.group import Group
from orchestrator.cli.options import example, json_option, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from orchestrator.experiment.sweep import Point
    from orchestrator.project import Project
    from orchestrator.records import Target, Variant, WorkingCopy

name_argument = click.argument("name", metavar="VARIANT")


@click.group("variant", cls=Group)
@example("orch variant list")
def command() -> None:
    """Make, list, show, diff, edit and drop variants.

    A variant is a working copy of the target's files under variants/TARGET/NAME/. What it changes is found by
    comparing syntax trees with the baseline, however it was edited.
    """


class Setting(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    """``num_stages=3`` → ("num_stages", "3")."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Splits at the first ``=``; both sides must be there."""
        if isinstance(value, tuple):
            return value
        knob, equals, text = str(value).partition("=")
        if not equals or not knob.strip() or not text.strip():
            self.fail(f"{value!r} is not KNOB=VALUE, such as num_stages=3", param, ctx)
        return knob.strip(), text.strip()


class PointNumbers(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    """``3,7`` → (3, 7); ``all`` → (), which stands for every point that is worth GPU time."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parses the list; refuses what is not a number from 1."""
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if words == ["all"]:
            return ()
        if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
            self.fail(f"{value!r} is not a list of points, such as 3,7 or all", param, ctx)
        return tuple(dict.fromkeys(int(word) for word in words))


@command.command("new")
@click.argument("name", metavar="[VARIANT]", required=False)
@click.option("--set", "settings", type=Setting(), multiple=True, metavar="KNOB=VALUE", help="E.g. num_stages=3.")
@click.option("--from", "base_name", metavar="VARIANT", help="Start from this variant's files, not the baseline's.")
@click.option(
    "--from-sweep",
    "points",
    type=PointNumbers(),
    metavar="N,N|all",
    help="Make one of each of these points of the last `orch check --sweep`; all: those worth GPU time.",
)
@click.option("-m", "--message", default="", help="The hypothesis: why it should be faster.")
@target_option
@json_option
@click.pass_obj
@example(
    'orch variant new V2 --set num_stages=3 --set num_warps=4 --set BLOCK_T=16 -m "deeper pipeline"',
    "orch variant new --from-sweep 3,7",
)
def new(
    obj: dict[str, str],
    name: str | None,
    settings: tuple[tuple[str, str], ...],
    base_name: str | None,
    points: tuple[int, ...] | None,
    message: str,
    target_name: str | None,
    is_json: bool,
) -> None:
    """Make a variant by setting knobs of the kernel's autotune list.

    Forces one config: knobs that are not named keep the value of the list's first config, the other configs go. Every
    other byte of the file stays. Without --set it is a copy to be edited by hand. With --from-sweep the knobs are
    those of points of the last grid, and each variant is named after its knobs unless you name the only one.
    """
    from orchestrator.project import Project

    repeated = sorted({knob for knob, _ in settings if [k for k, _ in settings].count(knob) > 1})
    if repeated:
        raise click.UsageError(f"--set names {', '.join(repeated)} twice")
    if points is not None and (settings or base_name):
        raise click.UsageError("--from-sweep has the knobs and the base of its grid: leave --set and --from out")
    if points is None and name is None:
        raise click.UsageError("missing argument 'VARIANT'")
    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    if points is not None:
        _new_from_sweep(out, project, target, points, name, message)
    else:
        out.document(_new(out, project, target, str(name), dict(settings), base_name, message))


def _new(
    out: Output,
    project: Project,
    target: Target,
    name: str,
    knobs: dict[str, str],
    base_name: str | None,
    message: str,
) -> dict[str, Any]:
    """Makes one variant, prints it, and returns its document."""
    from orchestrator import variant as variants
    from orchestrator import workspace

    root = project.variants_root
    baseline = workspace.read_baseline(root, target)
    start = workspace.read_working_copy(root, target, base_name).files if base_name else baseline.files
    files = variants.with_knobs(start, target.kernel, knobs) if knobs else start
    checked = _checked(
        target, name, files, baseline, message, is_from_baseline=base_name is None, has_knobs=bool(knobs)
    )
    workspace.new_variant(root, target, name, files, base_digest=baseline.digest, message=message, settings=knobs)
    out.line(f"{name} {checked.digest[7:19]}: {variants.describe(checked)}")
    out.line(f"working copy: {_relative(workspace.variant_folder(root, target, name))}")
    step = f"orch check --variant {name}" if checked.changes else f"orch variant edit {name}"
    out.line(f"next: `{step}`")
    return variant_document(checked, baseline.digest)


def _new_from_sweep(
    out: Output, project: Project, target: Target, numbers: tuple[int, ...], name: str | None, message: str
) -> None:
    """One variant for each point, over the files that the grid was laid over."""
    from orchestrator import workspace
    from orchestrator.errors import WorkspaceError
    from orchestrator.experiment.sweep import last_sweep, pick_points

    found = last_sweep(project, target)
    points = pick_points(found, numbers)
    if name is not None and len(points) > 1:
        raise click.UsageError(f"{len(points)} variants cannot all be called {name}: leave the name out")
    is_baseline = found.variant == workspace.BASELINE
    root = project.variants_root
    base: Any = (
        workspace.read_baseline(root, target)
        if is_baseline
        else workspace.read_working_copy(root, target, found.variant)
    )
    if base.digest != found.digest:
        raise WorkspaceError(
            f"{found.variant} is not what the last sweep compiled ({found.digest[7:19]}, now {base.digest[7:19]})",
            next_step="run `orch check --sweep …` again",
        )
    base_name = None if is_baseline else found.variant
    there = {working.name: working for working in workspace.list_variants(root, target)}
    wanted = [point for point in points if not _is_there(out, target, there.get(name or point.name), point, base)]
    documents = [
        _new(out, project, target, name or point.name, dict(point.settings), base_name, message) for point in wanted
    ]
    out.document({"target": target.name, "variants": documents})


def _is_there(out: Output, target: Target, working: WorkingCopy | None, point: Point, base: Any) -> bool:
    """Whether a point was made before: then it is said, and nothing is done.

    Raises:
        WorkspaceError: a variant of that name has other files; nothing was made.
    """
    from orchestrator import variant as variants
    from orchestrator.errors import WorkspaceError
    from orchestrator.records import manifest_digest

    if working is None:
        return False
    files = variants.with_knobs(base.files, target.kernel, point.settings)
    if working.digest != manifest_digest((file.name, file.digest) for file in files):
        raise WorkspaceError(
            f"there is another variant {working.name} already; nothing was made",
            next_step=f"`orch variant drop {working.name}`, or name the point's variant yourself",
        )
    out.line(f"{working.name} {working.digest[7:19]}: made before from the same point")
    return True


def _checked(
    target: Target, name: str, files: Any, baseline: Any, message: str, *, is_from_baseline: bool, has_knobs: bool
) -> Variant:
    """What the new variant changes, before anything is written: a wrong one leaves no folder behind."""
    from orchestrator import variant as variants
    from orchestrator import workspace
    from orchestrator.records import WorkingCopy

    workspace.checked_variant_name(name)
    working = WorkingCopy(target.name, name, tuple(files), baseline.digest, message, created_at="")
    return variants.make_variant(
        baseline.files,
        working,
        target.kernel,
        only_knobs=has_knobs and is_from_baseline,
        may_be_unchanged=not has_knobs,
    )


@command.command("list")
@target_option
@json_option
@click.pass_obj
@example("orch variant list")
def list_(obj: dict[str, str], target_name: str | None, is_json: bool) -> None:
    """List the variants of a target: digest, what each changes, and why it was made."""
    from orchestrator import workspace
    from orchestrator.project import Project

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    entries = [summary(project, target, working) for working in workspace.list_variants(project.variants_root, target)]
    broken = workspace.unreadable_variants(project.variants_root, target)
    if entries:
        rows = [(e["name"], e["digest"][7:19], e["changes"], e["message"]) for e in entries]
        out.table(Table(("variant", "digest", "changes", "message"), rows))
    else:
        out.line(f"target {target.name} has no variants; make one with `orch variant new V1 --set …`")
    for name, error in broken.items():
        out.warn(f"{name} cannot be read: {error}")
    out.document({"target": target.name, "variants": entries, "unreadable": {n: str(e) for n, e in broken.items()}})


def summary(project: Project, target: Target, working: WorkingCopy) -> dict[str, Any]:
    """One variant in short; one that is wrong says so instead of what it changes."""
    from orchestrator import variant as variants
    from orchestrator import workspace
    from orchestrator.errors import OrchError

    is_stale: bool | None = None
    try:
        is_stale = workspace.is_stale(working, workspace.read_baseline(project.variants_root, target))
        base = workspace.read_baseline(project.variants_root, target, working.base_digest)
        words = variants.describe(variants.make_variant(base.files, working, target.kernel))
    except OrchError as exc:
        words = exc.message
    return {
        "name": working.name,
        "digest": working.digest,
        "base_digest": working.base_digest,
        "is_stale": is_stale,
        "changes": f"{words}{' (made from an older baseline)' if is_stale else ''}",
        "message": working.message,
        "created_at": working.created_at,
    }


@command.command("show")
@name_argument
@target_option
@json_option
@click.pass_obj
@example("orch variant show V2")
def show(obj: dict[str, str], name: str, target_name: str | None, is_json: bool) -> None:
    """Show what a variant changes, knob by knob, and whether nothing else differs."""
    from orchestrator import variant as variants
    from orchestrator import workspace
    from orchestrator.project import Project
    from orchestrator.records import short
    from orchestrator.session import read_variant

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    variant = read_variant(project, target, name)
    baseline = workspace.read_baseline(project.variants_root, target)
    out.line(f"{variant.name} {short(variant.digest)}, made from baseline {short(variant.base_digest)}")
    if variant.base_digest != baseline.digest:
        out.line(f"the baseline is now {short(baseline.digest)}: make it again", style="yellow")
    out.line(variants.describe(variant), style="green" if variant.is_isolated else "yellow")
    if variant.message:
        out.line(f"hypothesis: {variant.message}")
    rows = [(c.kind, c.where, c.name, _cut(c.before), _cut(c.after)) for c in variant.changes]
    out.table(Table(("kind", "where", "what", "before", "after"), rows))
    out.document(variant_document(variant, baseline.digest))


def _cut(text: str | None) -> str | None:
    if text is None:
        return None
    line = " ".join(text.split())
    return line if len(line) <= 48 else line[:47] + "…"


def variant_document(variant: Variant, baseline_digest: str) -> dict[str, Any]:
    """The JSON of a variant; keys are stable."""
    from orchestrator import variant as variants

    return {
        "name": variant.name,
        "target": variant.target,
        "digest": variant.digest,
        "base_digest": variant.base_digest,
        "is_stale": variant.base_digest != baseline_digest,
        "is_isolated": variant.is_isolated,
        "summary": variants.describe(variant),
        "message": variant.message,
        "changes": [
            {
                "kind": change.kind,
                "file": change.file,
                "where": change.where,
                "name": change.name,
                "before": change.before,
                "after": change.after,
            }
            for change in variant.changes
        ],
        "edited_functions": list(variant.edited_functions),
        "files": [{"name": file.name, "digest": file.digest} for file in variant.files],
        "created_at": variant.created_at,
    }


@command.command("diff")
@name_argument
@target_option
@json_option
@click.pass_obj
@example("orch variant diff V2")
def diff(obj: dict[str, str], name: str, target_name: str | None, is_json: bool) -> None:
    """Show a variant's diff against the baseline that it was made from."""
    from orchestrator.project import Project

    project = Project.open(obj["inventory_path"])
    print_diff(Output(is_json=is_json), project, project.target(target_name), name)


def print_diff(out: Output, project: Project, target: Target, name: str) -> None:
    """The diff of a working copy, which need not parse."""
    from orchestrator import workspace

    working = workspace.read_working_copy(project.variants_root, target, name)
    base = workspace.read_baseline(project.variants_root, target, working.base_digest)
    lines = workspace.diff(base.files, working.files)
    out.diff(lines)
    if not lines:
        out.note(f"{name} does not differ from its baseline")
    out.document({"from": base.digest, "to": working.digest, "diff": [line.rstrip("\n") for line in lines]})


@command.command("edit")
@name_argument
@click.option("--file", "file_name", metavar="NAME", help="Which of the target's files; the first when left out.")
@target_option
@click.pass_obj
@example("orch variant edit V2")
def edit(obj: dict[str, str], name: str, file_name: str | None, target_name: str | None) -> None:
    """Open a variant's working copy in $EDITOR, then say what it changes."""
    from orchestrator import variant as variants
    from orchestrator import workspace
    from orchestrator.errors import UnknownNameError
    from orchestrator.project import Project
    from orchestrator.session import read_variant

    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    names = [file.name for file in target.files]
    chosen = file_name or names[0]
    if chosen not in names:
        raise UnknownNameError(f"target {target.name} has no file {chosen!r}", next_step=f"one of: {', '.join(names)}")
    folder = workspace.variant_folder(project.variants_root, target, name)
    click.edit(filename=str(folder / chosen))
    Output().line(f"{name}: {variants.describe(read_variant(project, target, name))}")


@command.command("drop")
@name_argument
@target_option
@json_option
@click.pass_obj
@example("orch variant drop V1")
def drop(obj: dict[str, str], name: str, target_name: str | None, is_json: bool) -> None:
    """Take a variant out of the workspace; its files are kept aside and its measurements stay in the record."""
    from orchestrator import workspace
    from orchestrator.project import Project

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    kept = workspace.drop_variant(project.variants_root, project.target(target_name), name)
    out.line(f"dropped {name}; its files are kept in {_relative(kept)}")
    out.document({"dropped": name, "kept": str(kept)})


def _relative(path: object) -> str:
    import os

    return os.path.relpath(str(path))
