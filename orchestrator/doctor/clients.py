"""The load clients of other people that workloads name: whether each is there on the host, and in which version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.clients import load_client
from orchestrator.clients.driven import DrivenClient
from orchestrator.clients.presence import find_client
from orchestrator.connection import Remote
from orchestrator.doctor.findings import Finding, fail, guarded, ok
from orchestrator.records import Engine, Workload

NAME = "load clients"


def check_clients(remote: Remote, engine: Engine, workloads: Mapping[str, Workload]) -> Iterator[Finding]:
    """A finding for each workload that another client than loadgen makes, in the order of the inventory."""
    for workload in workloads.values():
        if isinstance(load_client(workload.client), DrivenClient):
            yield _guarded(remote, engine, workload)


def _guarded(remote: Remote, engine: Engine, workload: Workload) -> Finding:
    return guarded(NAME, lambda: _check(remote, engine, workload), "run `orch doctor` again")


def _check(remote: Remote, engine: Engine, workload: Workload) -> Finding:
    found = find_client(remote, engine, workload)
    assert found is not None
    if found.version is not None:
        return ok(NAME, f"{workload.name}: {workload.client} {found.version}, {' '.join(found.command)}")
    correct = f"correct {found.wrong_key}: of workload {workload.name} in inventory.yaml"
    if found.wrong_key == "client_command":
        correct += f", or install {workload.client} there"
    return fail(NAME, f"{workload.name}: {found.why_not}", correct)
