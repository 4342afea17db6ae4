"""The target on its host: can each file be replaced, what is live in it, and is the kernel's autotune list found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator import variant
from orchestrator.doctor.findings import Finding, fail, ok, warn
from orchestrator.doctor.host import free_text
from orchestrator.doctor.host_facts import HostFacts, bytes_text
from orchestrator.errors import VariantError
from orchestrator.records import CLEAN, Snapshot, Target, short
from orchestrator.session import BASELINE

NEEDED_BYTES = 1 << 20
WANTED_BYTES = 64 << 20
"""A push keeps the old file, and writes the new one beside it before anything is replaced."""


def check_files(target: Target, facts: HostFacts) -> Iterator[Finding]:
    """One finding a file of the target."""
    for number in range(len(target.files)):
        yield _check_kind(target, number, facts) or _check_rights(target, number, facts)


def _check_kind(target: Target, number: int, facts: HostFacts) -> Finding | None:
    """Why a path is no file that can be tuned; None when it is one."""
    path, kind = target.files[number].path, facts.one(f"kind.{number}")
    correct = f"correct files: of target {target.name} in inventory.yaml"
    near = facts.one(f"near.{number}")
    if facts.one(f"is_mount_point.{number}"):
        return fail(
            "target file",
            f"{path} is a mount of its own, so no rename can replace it",
            f"name the file that is mounted there: {correct}",
        )
    why = {
        "missing": f"is not there, or {facts.one('user')} may not look (as far as {near} it can be seen)",
        "dangling": f"is a symbolic link to nothing ({facts.one(f'real.{number}')})",
        "folder": "is a folder",
        "other": "is no regular file",
    }.get(kind)
    return fail("target file", f"{path} {why}", correct) if why else None


def _check_rights(target: Target, number: int, facts: HostFacts) -> Finding:
    """Whether this login may read a file and replace it."""
    path, real, folder = (target.files[number].path, facts.one(f"real.{number}"), facts.one(f"folder.{number}"))
    size, mode, n_links, uid, owner = (facts.one(f"stat.{number}").split() + [""] * 5)[:5]
    user = facts.one("user")
    name = path if path == real else f"{path} → {real}"
    text = f"{name}: {bytes_text(int(size or 0))}, mode {mode}, owner {owner}"
    log_in = f"log in as {owner.partition(':')[0]}: set user: of host {target.host} in inventory.yaml"
    if not facts.one(f"is_readable.{number}"):
        return fail("target file", f"{text}: {user} may not read it", log_in)
    if not facts.one(f"is_folder_writable.{number}"):
        return fail("target file", f"{text}: {user} may not write its folder {folder}", log_in)
    if facts.one("uid") not in ("0", uid):
        return warn("target file", f"{text}: not {user}'s own, so a push may be refused", log_in)
    if n_links not in ("", "1"):
        text += f", {n_links} hard links (a push leaves the others alone)"
    return ok("target file", text)


def check_disks(target: Target, facts: HostFacts) -> Iterator[Finding]:
    """Room beside each file, once a folder."""
    folders = {facts.one(f"folder.{number}"): number for number in reversed(range(len(target.files)))}
    for folder, number in folders.items():
        disk = facts.disk(f"df.{number}")
        if disk is None:
            continue
        text, make_room = f"{folder}: {free_text(disk)}", f"free some space on {disk.mount_point} of {target.host}"
        if disk.free_bytes < NEEDED_BYTES:
            yield fail("target disk", f"{text}: a push would be refused (a revert needs none)", make_room)
        elif disk.free_bytes < WANTED_BYTES:
            yield warn("target disk", text, make_room)
        else:
            yield ok("target disk", text)


def check_live(snapshot: Snapshot, baseline_digest: str | None, names: Mapping[str, str]) -> Finding:
    """Whether this project knows the bytes that are live."""
    name, digest = names.get(snapshot.digest), short(snapshot.digest)
    is_clean = all(state.phase == CLEAN for state in snapshot.states)
    if baseline_digest is None:
        return ok("live bytes", f"{digest}; nothing is on record yet: `orch pull` makes it the baseline")
    if snapshot.digest == baseline_digest:
        return ok("live bytes", f"{BASELINE} {digest}")
    if name is not None and not is_clean:
        return ok("live bytes", f"variant {name} {digest}, pushed by orch")
    who = f"byte for byte variant {name}, which orch did not push" if name else "unknown to this project"
    return warn(
        "live bytes",
        f"{digest} is {who}; the baseline is {short(baseline_digest)}",
        f"see `orch drift {snapshot.target}`, then `orch pull {snapshot.target}` if the change is meant",
    )


def check_kernel(target: Target, snapshot: Snapshot) -> Finding:
    """Whether the kernel is in the first file, with a list of knobs that can be set."""
    first = snapshot.files[0]
    kernel = target.kernel
    if kernel is None:
        return ok("kernel", f"none is named: variants of {first.name} are edited by hand, and nothing is compiled")
    try:
        found = variant.list_knobs(first.content, kernel, first.name)
    except VariantError as exc:
        correct = exc.next_step or f"correct kernel: of target {target.name} in inventory.yaml"
        if _has_kernel(kernel, first.content):
            return warn("kernel", exc.message, correct)
        return fail("kernel", exc.message, correct)
    knobs = ", ".join(f"{name} {'|'.join(values)}" for name, values in found.knobs.items())
    where = f"{kernel}, {first.name}:{found.line}"
    if found.n_configs is None:
        return warn(
            "kernel",
            f"{where}: its configs are computed, so `--set` must name every knob ({knobs or 'none can be read'})",
            "give all of them to `orch variant new --set`, or edit by hand with `orch variant edit`",
        )
    return ok("kernel", f"{where}: {found.n_configs} config{'s' * (found.n_configs != 1)}; {knobs}")


def _has_kernel(kernel: str, content: bytes) -> bool:
    try:
        return variant.has_function(content, kernel)
    except VariantError:
        return False
