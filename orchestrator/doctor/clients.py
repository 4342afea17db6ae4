"""The load clients of other people that workloads name: whether each is there on the host, and in which version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.clients import load_client
from orchestrator.clients.driven import Candidate, DrivenClient
from orchestrator.clients.driver import VERSION, last_lines
from orchestrator.connection import Remote
from orchestrator.doctor.findings import Finding, fail, guarded, ok
from orchestrator.errors import OrchError
from orchestrator.records import Engine, Workload

NAME = "load clients"
PATIENCE_S = 120.0
"""Some import half of their engine before they tell their version."""

_IS_THERE = '[ -e "$1" ]'


def check_clients(remote: Remote, engine: Engine, workloads: Mapping[str, Workload]) -> Iterator[Finding]:
    """A finding for each workload that another client than loadgen makes, in the order of the inventory."""
    for workload in workloads.values():
        client = load_client(workload.client)
        if isinstance(client, DrivenClient):
            yield _guarded(remote, engine, workload, client)


def _guarded(remote: Remote, engine: Engine, workload: Workload, client: DrivenClient) -> Finding:
    return guarded(NAME, lambda: _check(remote, engine, workload, client), "run `orch doctor` again")


def _check(remote: Remote, engine: Engine, workload: Workload, client: DrivenClient) -> Finding:
    correct = f"correct client_command: of workload {workload.name} in inventory.yaml, or install {client.name} there"
    tokenizer = workload.tokenizer or ""
    if tokenizer.startswith("/") and remote.run(_IS_THERE, [tokenizer]).exit_code:
        text = f"{workload.name}: tokenizer {tokenizer} is not there"
        return fail(NAME, text, f"correct tokenizer: of workload {workload.name} in inventory.yaml")
    refusals = []
    for candidate in client.candidates(workload, engine):
        found, refusal = _version(remote, workload, candidate)
        if found is not None:
            return ok(NAME, f"{workload.name}: {client.name} {found}, {' '.join(candidate.argv)}")
        refusals.append(f"{' '.join(candidate.argv)}: {refusal}")
    return fail(NAME, f"{workload.name}: no {client.name}: {'; '.join(refusals)}", correct)


def _version(remote: Remote, workload: Workload, candidate: Candidate) -> tuple[str | None, str]:
    """What a form of the client tells of itself, or why it tells nothing."""
    settings = [f"{name}={value}" for name, value in workload.client_env.items()]
    try:
        done = remote.run('exec env "$@"', [*settings, *candidate.version_argv], timeout_s=PATIENCE_S)
    except OrchError as exc:
        return None, exc.message
    out, err = (stream.decode("utf-8", "backslashreplace") for stream in (done.stdout, done.stderr))
    found = VERSION.findall("".join(last_lines(out)[-1:]))
    if done.exit_code == 0 and found:
        return found[-1], ""
    return None, (last_lines(err) or last_lines(out) or [f"exit code {done.exit_code}"])[-1]
