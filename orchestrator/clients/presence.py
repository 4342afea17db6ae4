"""Whether the load client that a workload names is there on a host, and in which version. Starts no load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.clients import load_client
from orchestrator.clients.driven import Candidate, DrivenClient
from orchestrator.clients.driver import VERSION, last_lines
from orchestrator.connection import Remote
from orchestrator.errors import OrchError
from orchestrator.records import Engine, Workload

PATIENCE_S = 120.0
"""Some import half of their engine before they tell their version."""

_IS_THERE = '[ -e "$1" ]'


@dataclass(frozen=True, slots=True)
class Presence:
    """What was found of a client.

    Attributes:
        version: as it tells it; None when it is not there, then ``why_not`` says why.
        command: what its own options follow.
        wrong_key: of the workload, where one is the cause.
    """

    version: str | None
    command: tuple[str, ...] = ()
    why_not: str = ""
    wrong_key: str = "client_command"


def find_client(remote: Remote, engine: Engine, workload: Workload) -> Presence | None:
    """Asks a workload's client for its version; None for loadgen, which orch sends along."""
    client = load_client(workload.client)
    if not isinstance(client, DrivenClient):
        return None
    tokenizer = workload.tokenizer or ""
    if tokenizer.startswith("/") and remote.run(_IS_THERE, [tokenizer]).exit_code:
        return Presence(None, why_not=f"tokenizer {tokenizer} is not there", wrong_key="tokenizer")
    refusals = []
    for candidate in client.candidates(workload, engine):
        found, refusal = _version(remote, workload, candidate)
        if found is not None:
            return Presence(found, candidate.argv)
        refusals.append(f"{' '.join(candidate.argv)}: {refusal}")
    return Presence(None, why_not=f"no {client.name}: {'; '.join(refusals)}")


def require_makeable(engine: Engine, workloads: Sequence[Workload], concurrencies: Sequence[int]) -> None:
    """Refuses what shows before the engine is started. Asks nobody.

    Raises:
        LoadError: a workload's client cannot make one of these loads of this engine.
    """
    served = engine if engine.model is not None else replace(engine, model="told when it is ready")
    for workload in workloads:
        for concurrency in concurrencies:
            load_client(workload.client).prepare(workload, served, concurrency, "/")


def why_not_usable(remote: Remote, engine: Engine, workload: Workload, concurrencies: Sequence[int]) -> str | None:
    """Why a workload's client cannot make these loads of this engine, as far as that shows before; None when it can."""
    try:
        require_makeable(engine, [workload], concurrencies)
    except OrchError as exc:
        return exc.message
    found = find_client(remote, engine, workload)
    return None if found is None or found.version is not None else found.why_not


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
