"""What an earlier run left on the host: a deployment, a lease, kept files, a running engine, folders of loads."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from orchestrator.doctor.findings import Finding, ok, skipped, warn
from orchestrator.doctor.host_facts import HostFacts
from orchestrator.records import CLEAN, FileState, Lease, Target, short
from orchestrator.store import OpenDeployment


def live_lease(states: Sequence[FileState]) -> Lease | None:
    """The lease that is held on the target now; None when nobody holds one."""
    return next((state.lease for state in states if state.lease is not None and state.lease.remaining_s > 0), None)


def check_deployment(
    target: Target, states: Sequence[FileState], opened: Sequence[OpenDeployment], own_nonces: Collection[str]
) -> Finding:
    """Whether something of orch's is live, and who holds the lease."""
    lease, deployed = live_lease(states), [state for state in states if state.phase != CLEAN]
    what = f"deployed: {', '.join(state.path for state in deployed)}" if deployed else "nothing deployed"
    revert = f"`orch revert {target.name}`"
    if lease is not None:
        is_ours = lease.nonce in own_nonces
        whose = "this project" if is_ours else "somebody else"
        text = f"{what}; {whose} holds the lease for another {lease.remaining_s:.0f} s: {lease.holder}"
        return warn("deployment", text, f"{revert} ends it" if is_ours else f"wait, or ask them to run {revert}")
    if deployed:
        return warn("deployment", f"{what}; nobody holds the lease", f"{revert} puts the baseline back")
    if opened:
        text = f"nothing deployed, but the record holds {opened[-1].variant} open since {opened[-1].started_at}"
        return warn("deployment", text, f"`orch status {target.name}` brings the record up to date")
    return ok("deployment", "nothing deployed, nobody holds the lease")


def check_kept(target: Target, facts: HostFacts) -> Finding:
    """Edits by somebody else that a forced revert kept, and a lock that was left."""
    numbers = range(len(target.files))
    kept = [path for number in numbers for path in facts.all(f"kept.{number}")]
    locks = {f"{facts.one(f'folder.{n}')}/.orch.mutex": owner for n in numbers for owner in facts.all(f"mutex.{n}")}
    if kept:
        return warn(
            "kept files",
            f"{len(kept)} edit(s) by somebody else were kept by a forced revert",
            f"compare, then remove on {target.host}: `rm -- {shlex.join(kept)}`",
            kept,
        )
    if locks:
        return warn(
            "kept files",
            f"a lock is there: {', '.join(f'{path} of {owner}' for path, owner in locks.items())}",
            f"an operation is under way, or was killed: run `orch status {target.name}`, then this again",
        )
    return ok("kept files", "none")


def check_engines(
    target: Target, engines: Sequence[Mapping[str, Any]], known: Collection[str], lease: Lease | None
) -> Finding:
    """Engines that orch started and that still run.

    Args:
        known: names of the inventory's engines.
        lease: the live one; an engine that runs under it is at work.
    """
    if not engines:
        return ok("engine process", "none that orch started is running")
    text = "; ".join(_engine_words(one) for one in engines)
    if lease is not None:
        return ok("engine process", f"{text}, under the lease of {lease.holder}")
    strangers = [one for one in engines if one["engine"] not in known]
    if strangers:
        groups = " ".join(f"-{one['group']}" for one in strangers)
        return warn("engine process", text, f"end it on {target.host}: `kill -TERM {groups}`")
    return warn("engine process", text, f"`orch bench` restarts it, `orch revert {target.name}` stops it")


def _engine_words(one: Mapping[str, Any]) -> str:
    others = f" and {len(one['pids']) - 1} more" if len(one["pids"]) > 1 else ""
    leader = "" if one["has_leader"] else " (its leader is gone)"
    since = ""
    if one["started_s"] is not None:
        since = f" since {datetime.fromtimestamp(one['started_s'], timezone.utc).isoformat(timespec='seconds')}"
    return f"{one['engine']} pid {one['pids'][0]}{others}{leader}{since}, on {short(one['deployed_digest'])}"


def check_runs(target: Target, scratch: str | None, facts: HostFacts, lease: Lease | None) -> Finding:
    """Folders of loads whose results were never fetched; a load under way has one too."""
    runs = facts.all("run")
    if scratch is None:
        return skipped("run folders", "there is no scratch folder")
    if not runs:
        return ok("run folders", "none")
    if lease is not None:
        return ok("run folders", f"{len(runs)} in {scratch}/runs, while {lease.holder} is at work")
    return warn(
        "run folders",
        f"{len(runs)} interrupted load(s) in {scratch}/runs",
        f"look, then remove on {target.host}: `rm -r -- {shlex.quote(f'{scratch}/runs')}`",
        runs[:20],
    )
