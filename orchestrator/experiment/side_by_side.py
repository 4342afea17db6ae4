"""Several load clients on one engine start: which of them can make the loads, and the loads, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.clients import CLIENTS, load_client
from orchestrator.clients.presence import why_not_usable
from orchestrator.errors import LoadError, UnknownNameError
from orchestrator.experiment.trial import LoadWatch, Trial, trials
from orchestrator.records import Workload
from orchestrator.session import Session


@dataclass(frozen=True, slots=True)
class Skipped:
    """A client that made no load, and why; ``workload`` is None where none names it."""

    client: str
    workload: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class SideBySide:
    """One engine start, loaded by several clients: a record each, in the order of the workloads."""

    workloads: tuple[Workload, ...]
    trials: tuple[Trial, ...]
    skipped: tuple[Skipped, ...]


def side_by_side(
    session: Session,
    workloads: Sequence[Workload],
    clients: Sequence[str],
    concurrencies: Sequence[int],
    *,
    keep_running: bool = False,
    on_load: LoadWatch | None = None,
) -> SideBySide:
    """Asks each client whether it is there, then starts the engine and has each make every load.

    Args:
        workloads: of one recipe. clients: by name, each of which must be there; all that are, when empty.

    Raises:
        LoadError: a client that was named cannot make the loads, or none can. UnknownNameError: none is called so, or
            no workload of this recipe is made by it.
        As ``trial``.
    """
    chosen, skipped = choose(session, workloads, clients, concurrencies)
    made = trials(session, chosen, concurrencies, keep_running=keep_running, on_load=on_load)
    return SideBySide(tuple(chosen), tuple(made), tuple(skipped))


def choose(
    session: Session, workloads: Sequence[Workload], clients: Sequence[str], concurrencies: Sequence[int]
) -> tuple[list[Workload], list[Skipped]]:
    """The workloads whose clients are there, in the order of the inventory, and what is left out.

    Raises:
        As ``side_by_side``.
    """
    for name in clients:
        load_client(name)
    named = {one.client for one in workloads}
    unnamed = [name for name in clients or CLIENTS if name not in named]
    if unnamed and clients:
        raise UnknownNameError(
            f"no workload of this recipe is made by {', '.join(unnamed)}",
            next_step=f"add one to inventory.yaml: `client: {unnamed[0]}` and `recipe: {workloads[0].name}`",
        )
    chosen, skipped = [], [Skipped(name, None, "no workload of this recipe names it") for name in unnamed]
    for workload in workloads:
        if clients and workload.client not in clients:
            continue
        session.say("clients", f"looking for {workload.client} of workload {workload.name}")
        reason = why_not_usable(session.remote, session.engine, workload, concurrencies)
        if reason is None:
            chosen.append(workload)
        else:
            skipped.append(Skipped(workload.client, workload.name, reason))
    if not chosen or (clients and skipped):
        first = skipped[0]
        raise LoadError(
            f"{session.target.host}: {first.client} of workload {first.workload} cannot make these loads: "
            f"{first.reason}",
            next_step="`orch doctor` looks for every client of the inventory",
        )
    return chosen, skipped
