"""Checks the whole chain from this machine to the load client, before anything depends on it: ``orch doctor``.

Gives one ``Finding`` a check, in the order in which things are used, and goes on after a failure as far as the next
check can stand. Writes nothing, neither here nor on the host; only the scratch folder is made where it is missing, and
on a cluster Slurm is asked for a node.

    line.py    ssh configuration, host key, login, node              target.py     the files, live bytes, the kernel
    host.py    tools, clock, scratch folder (seen by host_facts.py)  leftovers.py  what an earlier run left there
    engine.py  Python, program, port, modules (seen by host/survey.py)
    gpu.py     GPUs, who uses them, clocks                           record.py     inventory, results.db, workspace
    clients.py load clients of other people
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from orchestrator import push
from orchestrator.connection import Remote
from orchestrator.doctor import clients, engine, gpu, group, host, leftovers, line, target
from orchestrator.doctor.findings import Finding, Status, failed_by, guarded, skipped
from orchestrator.doctor.host_facts import HostFacts, ask
from orchestrator.doctor.record import OnRecord, check_results, check_workspace, open_project, read_record
from orchestrator.errors import OrchError
from orchestrator.project import Project
from orchestrator.pull import pull
from orchestrator.records import Engine, FileState, Target

__all__ = ["Finding", "Status", "examine", "open_project"]

Survey = Mapping[str, Any]


def examine(project: Project, checked: Target) -> Iterator[Finding]:
    """Every check of one target, with its host and its engine; each told as soon as it is made."""
    recorded, its_host = read_record(project, checked), project.host_of(checked)
    remote = yield from line.reach(its_host)
    if remote is None:
        yield skipped("host", f"nothing on {its_host.name} was looked at: no connection")
    else:
        with remote:
            place = remote if its_host.slurm is None else (yield from line.reach_node(remote))
            if place is not None:
                yield from _look_at_host(project, checked, place, recorded)
                yield from group.check_others(checked, place)
    yield engine.check_workloads(project.engine_of(checked), project.inventory.workloads)
    yield check_results(project, recorded)
    yield check_workspace(project, checked, recorded)


def _look_at_host(project: Project, checked: Target, remote: Remote, recorded: OnRecord) -> Iterator[Finding]:
    its_host, its_engine = remote.host, project.engine_of(checked)
    scratch = host.find_scratch(remote)
    scratch_dir = scratch if isinstance(scratch, str) else None
    try:
        facts = ask(remote, scratch_dir, checked, its_engine)
    except OrchError as exc:
        yield failed_by("host tools", exc, f"try `ssh {its_host.ssh or its_host.name} /bin/sh -c true`")
        return
    yield guarded("round trip", lambda: line.check_round_trip(remote, facts.one("shell")), "run `orch doctor` again")
    yield host.check_tools(its_host, facts)
    yield host.check_clock(its_host, facts)
    yield host.check_scratch(its_host, scratch, facts)
    states = yield from _look_at_target(checked, remote, facts, recorded)
    python, survey = engine.look_closer(remote, its_engine, checked, scratch_dir, facts)
    yield from _look_for_leftovers(project, checked, scratch_dir, facts, states, survey, recorded)
    yield python
    seen = gpu.ask(remote, its_engine)
    yield from _look_at_engine(checked, its_engine, scratch_dir, facts, survey, has_gpu=bool(seen.gpus))
    yield from clients.check_clients(remote, its_engine, project.inventory.workloads)
    yield gpu.check_gpus(its_engine, seen)
    if seen.gpus:
        yield gpu.check_processes(its_engine, seen, engine.own_pids(its_engine, scratch_dir, survey))
        yield gpu.check_clocks(seen)


def _look_at_target(
    checked: Target, remote: Remote, facts: HostFacts, recorded: OnRecord
) -> Generator[Finding, None, tuple[FileState, ...]]:
    """The files, what is live in them, and the kernel.

    Returns:
        Their states; none when they could not be asked for.
    """
    files = list(target.check_files(checked, facts))
    yield from files
    yield from target.check_disks(checked, facts)
    if any(finding.status == "fail" for finding in files):
        for name in ("live bytes", "kernel"):
            yield skipped(name, "not every file of the target can be read")
        return _states(remote, checked)
    try:
        snapshot = pull(remote, checked)
    except OrchError as exc:
        yield failed_by("live bytes", exc, f"run `orch status {checked.name}`")
        yield skipped("kernel", "the target could not be read")
        return ()
    yield target.check_live(snapshot, recorded.baseline.digest if recorded.baseline else None, recorded.names)
    yield target.check_kernel(checked, snapshot)
    return snapshot.states


def _states(remote: Remote, checked: Target) -> tuple[FileState, ...]:
    """The journal's word on files of which some are missing; none when it cannot be read either."""
    try:
        return push.status(remote, checked)
    except OrchError:
        return ()


def _look_for_leftovers(
    project: Project,
    checked: Target,
    scratch_dir: str | None,
    facts: HostFacts,
    states: tuple[FileState, ...],
    survey: Survey | None,
    recorded: OnRecord,
) -> Iterator[Finding]:
    lease = leftovers.live_lease(states)
    if states:
        yield leftovers.check_deployment(checked, states, recorded.opened, recorded.nonces)
    else:
        yield skipped("deployment", "the host's journal could not be read")
    yield leftovers.check_kept(checked, facts)
    yield leftovers.check_runs(checked, scratch_dir, facts, lease)
    if survey is not None:
        yield leftovers.check_engines(checked, survey["engines"], project.inventory.engines, lease)
    else:
        yield skipped("engine process", engine.NOT_ASKED)


def _look_at_engine(
    checked: Target,
    its_engine: Engine,
    scratch_dir: str | None,
    facts: HostFacts,
    survey: Survey | None,
    *,
    has_gpu: bool,
) -> Iterator[Finding]:
    yield engine.check_command(its_engine, facts)
    yield engine.check_folder(its_engine, scratch_dir, facts)
    log = engine.check_log(its_engine, facts)
    if log is not None:
        yield log
    yield engine.check_url(its_engine)
    counters = engine.check_counters(its_engine)
    if counters is not None:
        yield counters
    if survey is None:
        for name in ("engine port", "module", "versions", "load client"):
            yield skipped(name, engine.NOT_ASKED)
        return
    yield engine.check_port(its_engine, survey)
    yield from engine.check_modules(checked, its_engine, survey)
    yield engine.check_versions(survey, has_gpu=has_gpu)
    yield engine.check_client(its_engine, survey)
