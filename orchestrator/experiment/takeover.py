"""Go on with the engine start of an orch that is gone: its engine is up, and its load runs or has ended on the host.

Nothing that the other orch saw is taken on trust. Before: the lease is the one of the start and was never over, the
planned bytes are live, the engine is the very process that was proved, the workload is unchanged, and the load is byte
for byte the one that this orch would make. After the last load come the looks of every start, and the proof of load
and the facts of the host once more. Where one of these is missing, the start is made again. While a load runs it is
only looked at, as its own orch would have done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from orchestrator import bench, provenance, serve, telemetry
from orchestrator.errors import OrchError
from orchestrator.experiment.trial import (
    Hold,
    LoadWatch,
    Trial,
    as_served,
    counter_pairs,
    ending,
    held,
    load_once,
    run_dir_of,
    settle,
)
from orchestrator.records import NOT_RECORDED, EngineProcess, Environment, LoadedProof, LoadResult, Service, Workload
from orchestrator.session import Live, Session, look
from orchestrator.store import RecordedTrial


@dataclass(frozen=True, slots=True)
class Handover:
    """A start that can be gone on with.

    Attributes:
        done: concurrencies whose loads are on record. joins: of the load under way; None between two loads.
    """

    recorded: RecordedTrial
    live: Live
    process: EngineProcess
    done: tuple[int, ...]
    joins: int | None


def offered(
    session: Session, trial_id: int, workload: Workload, concurrencies: Sequence[int]
) -> tuple[Handover | None, str]:
    """Whether the host still has what an orch that is gone had begun. Looks only.

    Returns:
        The start, or None and why it has to be made again.
    """
    recorded = session.store.trial(trial_id)
    if recorded.pid is None or recorded.loaded_digest != recorded.digest:
        return None, "what its engine loaded was not proved yet"
    if recorded.workload != workload:
        return None, f"workload {workload.name} was changed since"
    live = look(session, "bench-before")
    if live.lease is None or live.nonce != recorded.nonce or live.lease.remaining_s <= 0:
        return None, "its lease has ended"
    if live.digest != recorded.digest:
        return None, "other bytes are live"
    process = serve.running(session.remote, session.engine)
    if process is None or (process.pid, process.start_ticks) != (recorded.pid, recorded.start_ticks):
        return None, "its engine is gone"
    done = tuple(session.store.load(load_id).concurrency_cap for load_id in session.store.load_ids(trial_id))
    following = next((cap for cap in concurrencies if cap not in done), None)
    found = "none"
    if following is not None:
        run_dir = run_dir_of(session, trial_id, following)
        engine = as_served(session.engine, recorded.facts or {})
        found = bench.find_load(session.remote, engine, workload, following, run_dir=run_dir)
    if found == "other":
        return None, "its load is not the one that this orch would make"
    return Handover(recorded, live, process, done, following if found == "same" else None), ""


def take_over(
    session: Session,
    handover: Handover,
    workload: Workload,
    concurrencies: Sequence[int],
    *,
    hold: Hold,
    on_load: LoadWatch | None = None,
) -> Trial:
    """Waits for the load under way, makes those that are missing, and proves that nothing changed since the start.

    Raises:
        LeaseLostError, EngineError, LoadError: as ``trial``; the start is stored as failed.
    """
    with held(session, handover.live, hold) as (_, keeper):
        started = _as_recorded(session, handover)
        with ending(session, started):
            for concurrency in concurrencies:
                if concurrency not in handover.done:
                    is_under_way = concurrency == handover.joins
                    load_once(session, started, workload, concurrency, keeper, on_load, joins=is_under_way)
            settle(session, handover.live, started, list(_doubts(session, handover, started)))
    started.flags = tuple(_told(handover, started.loads))
    return started


def _as_recorded(session: Session, handover: Handover) -> Trial:
    """The start as its orch left it in the record."""
    store, recorded, process = session.store, handover.recorded, handover.process
    proof = LoadedProof(digest=recorded.digest, files=(), pids=(), problems=())  # made again after the last load
    environment = Environment(facts=recorded.facts or {})
    service = Service(process, session.engine.base_url, proof, environment, recorded.ready_after_s or 0.0)
    started = Trial(recorded.id, recorded.variant, recorded.digest, service)
    for load_id in store.load_ids(recorded.id):
        load = store.load(load_id)
        started.loads.append(load)
        samples = store.telemetry(load_id)
        if not samples:  # killed before it had stored them: they lie on the host still, if there were any
            with contextlib.suppress(OrchError):
                run_dir = run_dir_of(session, recorded.id, load.concurrency_cap)
                samples = telemetry.collect(session.remote, run_dir=run_dir) or ()
                store.record_telemetry(load_id, samples)
                telemetry.remove_aside(session.remote, run_dir=run_dir)
        has_gpu = environment.facts.get("gpu_uuids") is not None
        started.telemetry[load.concurrency_cap] = samples if samples or has_gpu else None
    started.counters.update(counter_pairs(store.engine_counters(recorded.id)))
    return started


def _doubts(session: Session, handover: Handover, started: Trial) -> Iterator[str]:
    """Proves once more what is loaded, and under which facts: this covers the time in which nobody looked."""
    remote, engine, process, before = session.remote, session.engine, handover.process, started.service
    assert before is not None
    session.say("prove", "proving what was loaded, once more")
    expected = {name: digest for name, digest in handover.live.by_file.items() if digest is not None}
    proof = provenance.prove_loaded(remote, engine, session.target, process, expected)
    now = provenance.environment(remote, engine, process)
    yield from proof.problems
    for name in sorted({*before.environment.facts, *now.facts}):
        was, found = before.environment.facts.get(name), now.facts.get(name)
        if was != found:
            yield f"{name} is {_shown(found)}, and was {_shown(was)} when the engine started"
    if not proof.problems:
        started.service = Service(process, before.base_url, proof, before.environment, before.ready_after_s)
        session.store.record_service(handover.recorded.id, started.service)


def _shown(value: object) -> str:
    return NOT_RECORDED if value is None else str(value)


def _told(handover: Handover, loads: Sequence[LoadResult]) -> Iterator[str]:
    """What a reader should know: that it was taken over, and how long the engine had nothing to do."""
    what = "between two loads" if handover.joins is None else f"in the load at concurrency {handover.joins}"
    yield f"its orch ended {what}, another one took it over"
    n_before = len(handover.done) + (handover.joins is not None)
    if 0 < n_before < len(loads):
        idle_s = _seconds(loads[n_before].started_at) - _seconds(loads[n_before - 1].ended_at)
        yield f"concurrency {loads[n_before].concurrency_cap} began {idle_s:.0f} s after the load before it had ended"


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()  # Python 3.10 does not know the Z
