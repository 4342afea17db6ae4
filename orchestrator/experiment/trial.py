"""One engine start on what is live, proved and loaded at each concurrency: ``orch bench``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator import bench, provenance, push, serve, telemetry
from orchestrator.clients.presence import require_makeable
from orchestrator.connection import Remote
from orchestrator.connection.slurm_group import node_of
from orchestrator.designs import EngineCounters, TelemetrySample
from orchestrator.errors import EngineDiedError, InterruptedError_, LeaseLostError, OrchError, StaleBaseError
from orchestrator.experiment import everywhere
from orchestrator.experiment.guards import made_whole, reconcile, refuse_foreign_lease, wanted_files, with_diff
from orchestrator.interrupts import shielded
from orchestrator.project import holder
from orchestrator.records import Engine, LoadProgress, LoadResult, Progress, Service, Workload, short
from orchestrator.session import BASELINE, Live, Session, look, open_here
from orchestrator.store import MOMENTS, Moment, TrialStatus

TOLD = {"TRITON_PRINT_AUTOTUNING": "1", "PYTHONUNBUFFERED": "1"}
"""Has Triton write into the engine's log which config its autotuner chose, and Python not keep it back until its end;
the inventory's own values win."""
N_LOG_LINES = 25
TRIAL_TTL_S = 120.0
"""How long the lease of a baseline's trial outlives a controller that died."""


@dataclass(slots=True)
class Trial:
    """One engine start with its loads, as stored.

    Attributes:
        status: ``ok``, ``contaminated`` (the file or the engine changed meanwhile) or ``failed``.
        flags: what a reader should know of how it was made.
        compiled: what Triton compiled for it, seen while the engine ran; None when nobody looked.
        process_after: pid and start ticks of the engine's leader after the loads; None when there was none.
        telemetry: of each load, by concurrency; None on a host without a GPU. counters: the engine's own, just before
            and just after each load.
    """

    trial_id: int
    arm: str
    digest: str
    service: Service | None = None
    loads: list[LoadResult] = field(default_factory=list)
    reasons: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    status: TrialStatus = "running"
    digest_after: str | None = None
    compiled: provenance.TritonCache | None = None
    process_after: tuple[int, int | None] | None = None
    telemetry: dict[int, tuple[TelemetrySample, ...] | None] = field(default_factory=dict)
    counters: dict[int, tuple[EngineCounters, EngineCounters]] = field(default_factory=dict)


LoadWatch = Callable[[LoadProgress], None]


def _ignore(_: int) -> None:
    """For who does not want to know."""


@dataclass(frozen=True, slots=True)
class Hold:
    """How a trial holds its target.

    Attributes:
        ttl_s: how long the lease outlives a controller that died. keeps_lease: leave it in force at the end.
        on_begin: told the trial's id, once it is in the record and before anything is started.
    """

    ttl_s: float = TRIAL_TTL_S
    keeps_lease: bool = False
    on_begin: Callable[[int], None] = _ignore


def trial(
    session: Session,
    workload: Workload,
    concurrencies: Sequence[int],
    *,
    keep_running: bool = False,
    on_load: LoadWatch | None = None,
    hold: Hold | None = None,
) -> Trial:
    """Restarts the engine on what is live, proves what it loaded, loads it at each concurrency, and stores all of it.

    Arguments and errors are those of ``trials``.
    """
    (one,) = trials(session, (workload,), concurrencies, keep_running=keep_running, on_load=on_load, hold=hold)
    return one


def trials(
    session: Session,
    workloads: Sequence[Workload],
    concurrencies: Sequence[int],
    *,
    keep_running: bool = False,
    on_load: LoadWatch | None = None,
    hold: Hold | None = None,
) -> list[Trial]:
    """As ``trial``, with several workloads on one start: one after the other at each concurrency.

    The start is on record once for each workload, with the same process. At each next concurrency another workload
    goes first, in turn, so that none has always the coldest or the busiest engine.

    Args:
        keep_running: leave the engine running at the end.
        on_load: told of the progress of each load.
        hold: how the target is held; for the time of the trial when None.

    Raises:
        StaleBaseError: the live bytes are neither the baseline nor a variant that this project knows.
        LeaseLostError: the pushed variant is no longer live.
        EngineError: it did not start, died, or loaded other bytes; the trial is stored as failed.
        LoadError: a workload's client can make none of these loads of this engine; nothing was started.
        InterruptedError_: Ctrl-C; load and engine were stopped, the trial is stored as failed. A pushed variant stays.
    """
    serve.require_restartable(session.engine, is_attended=session.ask is not None)
    require_makeable(session.engine, workloads, concurrencies)
    live = arm_on_host(session)
    try:
        return _measure(session, live, workloads, concurrencies, keep_running, on_load, hold)
    except KeyboardInterrupt:
        stays = live.name if live.deployment is not None and not live.is_clean else None
        what = f"{stays} stays live on {session.target.host} under its lease" if stays else "the host is as it was"
        raise InterruptedError_(
            f"interrupted: the load and the engine were stopped, and no number counts as measured; {what}",
            next_step="`orch bench` measures it again, `orch revert` restores the host" if stays else None,
        ) from None
    finally:
        if hold is None and live.is_clean:
            _bring_back(session, live)


def _is_as_before(session: Session, live: Live) -> bool:
    """Whether the engine runs on the baseline, and ran before orch came: a unit or a container that serves others."""
    is_service = not session.engine.launcher.runs_command
    return is_service and live.is_clean and serve.ran_before(session.remote, session.engine)


def _bring_back(session: Session, live: Live) -> None:
    """Has an engine started again that ran before orch came and had to be stopped; nobody waits until it is ready."""
    engine, digest = session.engine, live.digest
    if engine.launcher.runs_command or digest is None:
        return
    try:
        if serve.owes_start(session.remote, engine, digest=digest, changed_s=None):
            session.say("start", f"starting {engine.name} again, on the baseline")
            serve.start(session.remote, engine, deployed_digest=digest, ask=session.ask)
    except OrchError as exc:  # what ended the trial is told by its own error
        session.say("start", f"{engine.name} does not run, and ran before: {exc.message}")


def _measure(
    session: Session,
    live: Live,
    workloads: Sequence[Workload],
    concurrencies: Sequence[int],
    keep_running: bool,
    on_load: LoadWatch | None,
    hold: Hold | None,
) -> list[Trial]:
    hold, is_alone = hold or Hold(), hold is None
    with held(session, live, hold) as (deployment_id, keeper):
        started = [_begun(session, live, deployment_id, workload) for workload in workloads]
        first, *others = started
        for one in started:
            hold.on_begin(one.trial_id)
        with contextlib.ExitStack() as ends:

            def is_kept() -> bool:
                return keep_running or (is_alone and _is_as_before(session, live))

            ends.enter_context(ending(session, first, is_kept))
            for one in others:
                ends.enter_context(_recording(session, one))
            first.service = _start_proved(session, live, first.trial_id)
            for one in others:
                one.service = first.service
                session.store.record_service(one.trial_id, first.service)
            for turn, concurrency in enumerate(concurrencies):
                for i in in_turn(len(workloads), turn):
                    load_once(session, started[i], workloads[i], concurrency, keeper, on_load)
            for one in started:
                settle(session, live, one)
    return started


def in_turn(n: int, turn: int) -> list[int]:
    """``0 … n − 1``, with another one first at each turn."""
    return [(turn + i) % n for i in range(n)]


def _begun(session: Session, live: Live, deployment_id: int, workload: Workload) -> Trial:
    """A start that is on record as running."""
    assert live.digest is not None
    assert live.name is not None
    trial_id = session.store.begin_trial(
        target=session.target.name,
        host=session.target.host,
        variant=live.name,
        digest=live.digest,
        digest_before=live.digest,
        deployment_id=deployment_id,
        workload=workload,
    )
    return Trial(trial_id, live.name, live.digest)


@contextlib.contextmanager
def _recording(session: Session, started: Trial) -> Iterator[None]:
    """Closes a further record of a start whose engine somebody else stops."""
    try:
        with _noting_failure(started):
            yield
    finally:
        with shielded("closing the record"):
            _end_trial(session, started)


@contextlib.contextmanager
def _noting_failure(started: Trial) -> Iterator[None]:
    try:
        yield
    except BaseException as exc:
        started.status = "failed"
        started.reasons = ("interrupted",) if isinstance(exc, KeyboardInterrupt) else (str(exc),)
        raise


@contextlib.contextmanager
def ending(session: Session, started: Trial, is_kept: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Stops the engine and closes the record of a start, however its loads end.

    Args:
        is_kept: whether to leave the engine running; asked when the start is good.
    """
    try:
        with _noting_failure(started):
            yield
    finally:
        with shielded("stopping the engine"):
            if session.engine.launcher.can_be_stopped and (started.status == "failed" or not is_kept()):
                session.say("stop", f"stopping {session.engine.name}")
                serve.stop(session.remote, session.engine, told=lambda line: session.say("stop", line))
            _end_trial(session, started)


def arm_on_host(session: Session) -> Live:
    """What is live, as an arm.

    Raises:
        StaleBaseError: these bytes are neither the baseline nor a variant that this project deployed.
        LeaseHeldError: somebody else holds the target. LeaseLostError: the pushed variant is no longer live.
    """
    baseline = session.baseline()
    expected = {file.name: file.digest for file in baseline.files}
    everywhere.refuse_shared_in_group(session)
    deployed_before = open_here(session)
    live = reconcile(session, made_whole(session, look(session, "bench-before")))
    refuse_foreign_lease(session, live)
    pushed = [d.variant for d in deployed_before if d.variant != BASELINE and d.status == "pushed"]
    if pushed and live.deployment is None and live.name != pushed[-1]:
        raise LeaseLostError(
            f"{session.target.host}: {pushed[-1]} is no longer live ({live.name or 'unknown bytes'} is, "
            f"{short(live.digest)}): its lease had ended and the host restored itself",
            next_step=f"run `orch push --variant {pushed[-1]}` again, or `orch bench` once more for what is live now",
        )
    wanted = wanted_files(session, live, baseline)
    if live.digest != wanted.digest and (live.name is None or not live.is_clean):
        raise with_diff(session, "bench-before", wanted)
    if live.name == BASELINE:
        session.store.record_states(session.target.host, session.target, live.states, "bench-before", expected)
    elif live.is_clean:
        raise StaleBaseError(
            f"{session.target.host}: the live file is byte for byte variant {live.name}, but orch did not push it",
            found=live.digest,
            expected=baseline.digest,
            next_step="restore the file, then `orch pull`, then `orch push --variant …`",
        )
    return live


@contextlib.contextmanager
def held(session: Session, live: Live, hold: Hold) -> Iterator[tuple[int, push.LeaseKeeper]]:
    """Holds the target for a trial: renews the lease of a pushed variant, or takes one on the baseline.

    Yields:
        The id of the deployment under which the trial runs, and the keeper of its lease.
    """
    assert live.digest is not None
    if live.deployment is not None and live.lease is not None and not live.is_clean:
        ttl_s = max(live.lease.remaining_s, hold.ttl_s)  # as long as the push asked for, but never a breath
        with push.LeaseKeeper(session.remote, session.target, nonce=live.deployment.nonce, ttl_s=ttl_s) as keeper:
            yield live.deployment.id, keeper
        return
    nonce = live.nonce or push.new_nonce()  # the lease of a bench that was killed goes on
    hold_id = session.store.begin_deployment(
        target=session.target.name,
        host=session.target.host,
        variant=BASELINE,
        digest=live.digest,
        previous_digest=live.digest,
        nonce=nonce,
        holder=holder(),
    )
    try:
        everywhere.lock(session, nonce=nonce, ttl_s=hold.ttl_s)
        with push.LeaseKeeper(session.remote, session.target, nonce=nonce, ttl_s=hold.ttl_s) as keeper:
            yield hold_id, keeper
    finally:
        with shielded("giving the lease back"):
            if not hold.keeps_lease:
                everywhere.unlock(session, nonce=nonce)
            session.store.end_deployment(hold_id, "reverted")


def settle(session: Session, live: Live, started: Trial, doubts: Sequence[str] = ()) -> None:
    """Looks at files and engine after the last load, and says whether the start can be trusted.

    Args:
        doubts: further reasons why not.
    """
    reasons = [*_contamination(session, live, started), *doubts]
    started.reasons = tuple(reasons)
    started.status = "contaminated" if reasons else "ok"
    started.flags = (*started.flags, *_unwatched(session, started))
    # before the stop: only a running process says where its cache really is, and shows what its container sees there
    started.compiled = _look_at_triton_cache(session, started)


def _unwatched(session: Session, started: Trial) -> Iterator[str]:
    """Nodes of an engine over several nodes whose GPUs nobody saw, while others' were seen."""
    seen = [samples for samples in started.telemetry.values() if samples]
    for member in session.remote.members if seen and len(session.remote.members) > 1 else ():
        node = node_of(member)
        n_loads = sum(any(one.node == node for one in samples) for samples in seen)
        if n_loads < len(seen):
            yield f"the GPUs of {node} were watched during {n_loads} of {len(seen)} loads"


def _start_proved(session: Session, live: Live, trial_id: int) -> Service:
    """Restart → ready → prove. No number is stored before this returns."""
    engine, remote = session.engine, session.remote
    assert live.digest is not None
    find = serve.present if len(remote.members) > 1 else serve.running  # of several ranks also one that is left
    if engine.launcher.can_be_stopped and find(remote, engine) is not None:
        session.say("stop", f"stopping {engine.name} to restart it")
        serve.stop(remote, engine, told=lambda line: session.say("stop", line))
    provenance.remove_stale_bytecode(remote, session.target, engine)
    digest = live.digest
    session.say("start", f"starting {engine.name} on {live.name} {short(digest)}")
    told = {name: value for name, value in TOLD.items() if name not in engine.env}

    def variables(machine: Remote) -> dict[str, str]:
        cache_dir = provenance.triton_cache_dir(machine.scratch_dir(), session.target, digest)
        return {"TRITON_CACHE_DIR": cache_dir, **told}

    process = serve.start(
        remote,
        engine,
        deployed_digest=digest,
        env=variables,
        ask=session.ask,
        on_wait=lambda seconds: session.report(Progress("start", f"waiting for {engine.name}", elapsed_s=seconds)),
    )
    ready_after_s = serve.wait_ready(
        remote,
        engine,
        process,
        on_wait=lambda seconds: session.report(
            Progress("ready", f"waiting for {engine.ready_path}", elapsed_s=seconds)
        ),
    )
    session.say("prove", "proving what was loaded")
    expected = {name: digest for name, digest in live.by_file.items() if digest is not None}
    proof = provenance.prove_loaded(remote, engine, session.target, process, expected)
    provenance.require(proof)
    environment = provenance.environment(remote, engine, process)
    service = Service(process, engine.base_url, proof, environment, ready_after_s)
    session.store.record_service(trial_id, service)
    return service


def run_dir_of(session: Session, trial_id: int, concurrency: int) -> str:
    """The folder of a load on its host."""
    return f"{session.remote.scratch_dir()}/runs/{session.target.name}-{trial_id}-c{concurrency}"


def as_served(engine: Engine, facts: Mapping[str, str | int | float | None]) -> Engine:
    """The engine as a load client must know it: with the model's name that it told where the inventory has none."""
    told = facts.get("model")
    return engine if engine.model is not None or told is None else replace(engine, model=str(told))


def load_once(
    session: Session,
    started: Trial,
    workload: Workload,
    concurrency: int,
    keeper: push.LeaseKeeper,
    on_load: LoadWatch | None,
    *,
    joins: bool = False,
) -> None:
    """One load, on record when this returns.

    Args:
        joins: it was started already, by an orch that is gone; it runs or has ended.

    Raises:
        LeaseLostError: the lease is gone; the load was stopped. EngineDiedError: the engine is gone after it.
    """
    run_dir = run_dir_of(session, started.trial_id, concurrency)
    session.say("load", f"concurrency {concurrency}")

    refuse_lost_node = everywhere.watch_nodes(session)

    def refuse_lost_lease() -> None:
        if keeper.lost is not None:
            raise keeper.lost
        refuse_lost_node()

    make = bench.join_load if joins else bench.run_load
    with _watched(session, started, concurrency, run_dir, joins=joins):
        load = make(
            session.remote,
            as_served(session.engine, started.service.environment.facts if started.service else {}),
            workload,
            concurrency,
            run_dir=run_dir,
            on_progress=on_load,
            check=refuse_lost_lease,
        )
    load_id = session.store.record_load(started.trial_id, load)
    samples = started.telemetry.get(concurrency)
    if samples:
        session.store.record_telemetry(load_id, samples)
    bench.remove_load(session.remote, run_dir)  # its raw result is on record
    telemetry.remove_aside(session.remote, run_dir=run_dir)
    started.loads.append(load)
    _refuse_dead_engine(session, started, keeper)


@contextlib.contextmanager
def _watched(session: Session, started: Trial, concurrency: int, run_dir: str, *, joins: bool) -> Iterator[None]:
    """Watches GPUs and engine during a load. Evidence only: what cannot be had is stored as not measured.

    Args:
        joins: the load is watched already, and the counters before it are on record.
    """
    remote = session.remote
    if not joins:
        _count(session, started, concurrency, "before")
        with contextlib.suppress(OrchError):
            telemetry.start(remote, session.engine, run_dir=run_dir)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OrchError):
            telemetry.stop(remote, run_dir=run_dir)
        raise
    with contextlib.suppress(OrchError):
        started.telemetry[concurrency] = telemetry.collect(remote, run_dir=run_dir)
    _count(session, started, concurrency, "after")
    started.counters.update(counter_pairs(session.store.engine_counters(started.trial_id)))


def _count(session: Session, started: Trial, concurrency: int, moment: Moment) -> None:
    """Asks the engine for its counters, on record when this returns."""
    with contextlib.suppress(OrchError):
        counters = telemetry.engine_counters(session.remote, session.engine)
        session.store.record_engine_counters(started.trial_id, concurrency, moment, counters)


def counter_pairs(
    recorded: Mapping[int, Mapping[Moment, EngineCounters]],
) -> dict[int, tuple[EngineCounters, EngineCounters]]:
    """Before and after each load, where both are known."""
    return {cap: (both["before"], both["after"]) for cap, both in recorded.items() if len(both) == len(MOMENTS)}


def _refuse_dead_engine(session: Session, started: Trial, keeper: push.LeaseKeeper) -> None:
    assert started.service is not None
    dead = serve.gone(session.remote, session.engine)
    if not dead:
        return
    keeper.require()  # the host ends the engine with the lease: that is no fault of the variant
    leader = started.service.process
    processes = [next((one for one in leader.others if one.host == node.host.name), leader) for node in dead]
    pids = ", ".join(str(process.pid) for process in processes)
    evidence: list[str] = []
    for node, process in zip(dead, processes, strict=True):
        title = [f"{node.host.name} (pid {process.pid}):"] if len(dead) > 1 else []
        evidence += [*title, *serve.log_tail(node, process, N_LOG_LINES // len(dead))]
    raise EngineDiedError(
        f"{', '.join(node.host.name for node in dead)}: {session.engine.name} (pid {pids}) died under load "
        f"at concurrency {started.loads[-1].concurrency_cap}",
        next_step="read its log below; the trial is stored as failed",
        evidence=evidence,
    )


def _contamination(session: Session, live: Live, started: Trial) -> list[str]:
    """Why these numbers do not belong to the digest that they were started on; empty when they do."""
    assert started.service is not None
    expected = {name: digest for name, digest in live.by_file.items() if digest is not None}
    after = look(session, "bench-after", expected)
    started.digest_after = after.digest
    now = serve.running(session.remote, session.engine)
    started.process_after = None if now is None else (now.pid, now.start_ticks)
    reasons = []
    if after.digest != live.digest:
        now_live = "; ".join(f"{node}: {what}" for node, what in after.by_node.items()) or short(after.digest)
        reasons.append(f"the live file changed under load: {short(live.digest)} before, {now_live} after")
    before = started.service.process
    if now is None or now.identities != before.identities:
        reasons.append(
            f"the engine was restarted under load: pid {before.pid} before, {now.pid if now else 'none'} after"
        )
    return reasons


def _look_at_triton_cache(session: Session, started: Trial) -> provenance.TritonCache | None:
    """What Triton compiled for this start. Evidence only: where it cannot be had, it is stored as not measured.

    So it is where orch gave the engine no cache of its own: what lies in a shared one may be another variant's.
    """
    if started.service is None or not session.engine.launcher.runs_command:
        return None
    with contextlib.suppress(OrchError):
        found = provenance.triton_cache(session.remote, session.engine, session.target, started.service)
        if found.n_left_out:
            n_all = len(found.cached) + found.n_left_out
            session.say(
                "prove", f"{session.target.kernel}: IR of {len(found.cached)} of {n_all} compiled forms is kept"
            )
        return found
    return None


def _end_trial(session: Session, started: Trial) -> None:
    compiled = started.compiled or _look_at_triton_cache(session, started)
    session.store.end_trial(
        started.trial_id,
        started.status,
        reasons=started.reasons,
        digest_after=started.digest_after,
        triton_kernels=None if compiled is None else compiled.kernels,
        autotune_winners=None if compiled is None else compiled.winners,
    )
    if compiled is not None:
        with contextlib.suppress(OrchError):
            session.store.record_compiled_kernels(started.trial_id, compiled.cached)
