"""A whole experiment: stored, its starts made in order, looked at where planned, and the host put back.

``conduct`` is the same whether an experiment begins or goes on after a crash: it asks the record which start comes
next, and the record is written before and after every act. Owns the order; the statistics, the gate and the host's
acts are elsewhere.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from orchestrator import stats
from orchestrator.admission import EarlierStart
from orchestrator.designs import Admission, Analysis, ExperimentRecord, Plan, StartRecord
from orchestrator.errors import (
    EngineError,
    ExperimentError,
    InterruptedError_,
    LeaseLostError,
    LoadError,
    OrchError,
    RevertError,
)
from orchestrator.experiment import admitting, blocks, events
from orchestrator.experiment.check import Attempt
from orchestrator.experiment.conclude import conclude, end_engine, restart_engine
from orchestrator.experiment.deploy import deploy, deploy_baseline
from orchestrator.experiment.draw import start_cost_s
from orchestrator.experiment.takeover import Handover, offered, take_over
from orchestrator.experiment.trial import Hold, LoadWatch, Trial, trial
from orchestrator.interrupts import shielded
from orchestrator.records import Restoration, Variant, short
from orchestrator.report.document import analysis_document, analysis_from_document
from orchestrator.session import Session, look, read_variant
from orchestrator.store import EndedStartStatus, FinalStatus, RecordedEvent

EXPERIMENT_TTL_S = 1800.0
"""How long the host keeps a variant of an experiment whose controller is gone; then it restores itself."""

MAX_FAILURES = 2
"""An arm that fails so often in a row is broken, not unlucky."""

Emit = Callable[[RecordedEvent], None]
"""Told of each event, once it is on record."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an experiment stands when ``conduct`` returns. ``analysis`` is the last; None before a block is complete."""

    experiment: ExperimentRecord
    analysis: Analysis | None


@dataclass(slots=True)
class Wishes:
    """What the user asks while it runs. ``finish_start``: stop after the start that is under way."""

    finish_start: bool = False


@dataclass(slots=True)
class _Conduct:
    """One experiment under way."""

    session: Session
    experiment_id: int
    plan: Plan
    emit: Emit
    variants: Mapping[str, Variant] = field(default_factory=dict)
    wishes: Wishes = field(default_factory=Wishes)
    on_load: LoadWatch | None = None
    ttl_s: float = EXPERIMENT_TTL_S
    began_s: float = field(default_factory=time.monotonic)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    earlier: list[EarlierStart] = field(default_factory=list)
    conditions: Mapping[str, str] | None = None
    failures: dict[str, int] = field(default_factory=dict)
    wrong_output: str | None = None

    def record(self) -> ExperimentRecord:
        """The experiment as the store has it now."""
        return self.session.store.experiment(self.experiment_id)

    def tell(self, kind: str, told: events.Told) -> None:
        """Records an event and hands it on."""
        self.emit(self.session.store.record_event(self.experiment_id, kind, *told))


def conduct(
    session: Session,
    experiment_id: int,
    emit: Emit,
    *,
    wishes: Wishes | None = None,
    on_load: LoadWatch | None = None,
    ttl_s: float = EXPERIMENT_TTL_S,
) -> Outcome:
    """Makes every start of an experiment that is not complete yet, and puts the host back, however it ends.

    An error or Ctrl-C leaves the experiment open: taken up again, it goes on from the next start that is not complete.

    Raises:
        StaleBaseError, ForeignEditError: somebody else changed the file; their edit is left as it is.
        ExperimentError: a variant or the baseline is no longer the one of the plan, and nothing was touched; or the
            conditions changed.
        InterruptedError_: Ctrl-C; the host was put back.
        RevertError: THE HOST IS NOT RESTORED.
    """
    plan = session.store.experiment(experiment_id).plan
    variants = _planned_variants(session, experiment_id, plan)
    running = _Conduct(session, experiment_id, plan, emit, variants, wishes or Wishes(), on_load, ttl_s)
    session.store.begin_experiment(experiment_id)
    try:
        _take_up(running)
        analysis, status, reason = _run(running)
        return _end(running, analysis, status, reason)
    except (KeyboardInterrupt, InterruptedError_):
        trouble = _leave(running, "interrupted")
        if trouble is not None:
            _add_how_to_go_on(trouble, experiment_id)
            raise trouble from None
        raise InterruptedError_(
            f"interrupted: experiment {experiment_id} is stopped, the host is as it was before",
            next_step=f"`orch resume {experiment_id}` goes on, `orch report {experiment_id}` shows what there is",
        ) from None
    except OrchError as exc:
        trouble = _leave(running, exc.message)
        _add_how_to_go_on(exc, experiment_id)
        if isinstance(trouble, RevertError):
            raise trouble from exc
        raise
    except Exception as exc:
        _leave(running, repr(exc))
        raise


def stop(session: Session, experiment_id: int, emit: Emit) -> Outcome:
    """Ends an unfinished experiment: the host is put back, and what was measured is kept and analysed.

    Raises:
        ExperimentError: it has ended already.
        RevertError: THE HOST IS NOT RESTORED.
    """
    record = session.store.experiment(experiment_id)
    if record.status not in ("planned", "running"):
        raise ExperimentError(
            f"experiment {experiment_id} has ended: it is {record.status}",
            next_step="`orch revert` puts the host back, whatever is live there",
        )
    running = _Conduct(session, experiment_id, record.plan, emit)
    session.store.abandon_running_starts(experiment_id, blocks.ABANDONED)
    return _end(running, _conclude_early(running), "stopped", "stopped by its user")


def _planned_variants(session: Session, experiment_id: int, plan: Plan) -> dict[str, Variant]:
    """The variants of the plan, as they are in the workspace now.

    Raises:
        ExperimentError: one was edited, or another baseline pulled, since the plan was drawn.
    """
    baseline, end_it = session.baseline(), f"`orch resume {experiment_id} --stop` ends it"
    if baseline.digest != plan.arms[0].digest:
        raise ExperimentError(
            f"experiment {experiment_id} was drawn for baseline {short(plan.arms[0].digest)}, and "
            f"{short(baseline.digest)} was pulled since",
            next_step=end_it,
        )
    found = {}
    for arm in plan.arms[1:]:
        if arm.digest == plan.arms[0].digest:
            continue
        variant = read_variant(session.project, session.target, arm.name)
        if variant.digest != arm.digest:
            raise ExperimentError(
                f"{arm.name} was edited since experiment {experiment_id} was drawn: it is {short(variant.digest)}, and "
                f"was {short(arm.digest)}",
                next_step=f"take the edit back, or {end_it}",
            )
        found[arm.name] = variant
    return found


def _take_up(running: _Conduct) -> None:
    """Finishes what an orch that was killed left half done, in the record and, where it can be had, on the host."""
    store, number = running.session.store, running.experiment_id
    under_way = next((one for one in running.record().starts if one.status == "running"), None)
    is_torn = blocks.tear_old_block(store, number)
    handover, why_not = (None, "") if under_way is None or is_torn else _offered(running, under_way)
    abandoned = () if handover else store.abandon_running_starts(number, blocks.ABANDONED)
    blocks.mend(store, number)
    record = running.record()
    running.earlier = admitting.earlier_starts(running.session, record)
    running.conditions = admitting.first_conditions(running.session, record)
    if under_way or is_torn:
        running.tell("recovered", events.recovered(len(abandoned), why_not, is_torn, is_taken_over=bool(handover)))
    if under_way and handover:
        _go_on(running, under_way, handover)
        if blocks.tear_old_block(store, number):  # its loads had ended long ago, and the rest of its block is missing
            blocks.mend(store, number)
            running.earlier = admitting.earlier_starts(running.session, running.record())
            running.tell("recovered", events.recovered(0, "", True, is_taken_over=False))


def _offered(running: _Conduct, start: StartRecord) -> tuple[Handover | None, str]:
    assert start.trial_id is not None
    workload = running.session.project.workload(running.plan.workload)
    return offered(running.session, start.trial_id, workload, running.plan.concurrencies)


# ---- the end


def _leave(running: _Conduct, reason: str) -> OrchError | None:
    """Puts the host back and keeps the experiment open; returns what kept it from being put back."""
    trouble: OrchError | None = None
    with contextlib.suppress(KeyboardInterrupt), shielded("putting the host back"):
        try:
            _put_back(running)
        except OrchError as exc:
            trouble = exc
            with contextlib.suppress(OrchError):
                end_engine(running.session)
        host = "" if trouble is None else f"; the host was not put back: {trouble.message}"
        running.tell("left", (f"{reason}{host}", {"reason": reason, "is_restored": trouble is None}))
    return trouble


def _add_how_to_go_on(error: OrchError, experiment_id: int) -> None:
    then = f"`orch resume {experiment_id}` goes on with the experiment, with --stop it ends it"
    error.next_step = f"{error.next_step}; then {then}" if error.next_step else then


def _end(running: _Conduct, analysis: Analysis | None, status: FinalStatus, reason: str | None) -> Outcome:
    """The host first, then the record, then the engine, for which nobody has to wait."""
    is_patient = False
    with contextlib.suppress(KeyboardInterrupt):  # the experiment is over: there is nothing left to interrupt
        with shielded("putting the host back"):
            restoration = _put_back(running)
            running.session.store.end_experiment(running.experiment_id, status, reason)
        is_patient = True
    if is_patient:
        _restart_engine(running, restoration)
    text = f"experiment {running.experiment_id} is {events.ending(status, reason)}"
    running.tell("end", (text, {"status": status, "reason": reason}))
    return Outcome(running.record(), analysis)


def _put_back(running: _Conduct) -> Restoration:
    restoration = conclude(running.session).restoration
    text = f"{running.plan.target} on {running.plan.host} is the baseline {short(restoration.digest)}, proved by digest"
    running.tell("restored", (text, {"digest": restoration.digest}))
    return restoration


def _restart_engine(running: _Conduct, restoration: Restoration) -> None:
    """The host as it is used: with its engine. That it does not start changes no verdict."""
    name, is_ready = running.session.engine.name, False
    evidence: tuple[str, ...] = ()
    try:
        restart_engine(running.session, restoration)
        text, is_ready = f"{name} is ready again, on the baseline", True
    except KeyboardInterrupt:
        text = f"{name} is still starting on the baseline"
    except OrchError as exc:
        text, evidence = f"{name} did not start again: {exc.message}", exc.evidence
    running.tell("engine", (text, {"is_ready": is_ready, "evidence": list(evidence)}))


# ---- the starts


def _run(running: _Conduct) -> tuple[Analysis | None, FinalStatus, str | None]:
    """Start after start, until a look decides, the looks are used up, or something ends it."""
    while True:
        why = _why_stop(running)
        if why is not None:
            return _conclude_early(running), "failed", why
        record = running.record()
        analysis = _look_if_due(running, record)
        if analysis is not None and analysis.stop_reason is not None:
            return analysis, _settled(running.plan, analysis), analysis.stop_reason
        if running.wishes.finish_start:
            raise KeyboardInterrupt
        following = blocks.next_start(record)
        if following is None or blocks.next_look(record) is None:
            n_lost, n_complete = blocks.n_lost(record), blocks.n_complete_blocks(record)
            reason = f"{n_lost} starts may not count, and no look can be reached any more from {n_complete} blocks"
            return _conclude_early(running), "exhausted", reason
        _make(running, record, following)


def _make(running: _Conduct, record: ExperimentRecord, start: StartRecord) -> None:
    """One start, from the push to the gate."""
    session, plan = running.session, running.plan
    each_s = start_cost_s(session.store, plan)
    running.tell("start", events.start_begins(record, start, each_s, time.monotonic() - running.began_s))
    hold = Hold(running.ttl_s, True, lambda trial_id: session.store.begin_start(start.id, trial_id))

    def act() -> Trial:
        _make_live(running, start.planned.arm)
        workload = session.project.workload(plan.workload)
        return trial(session, workload, plan.concurrencies, on_load=running.on_load, hold=hold)

    _judge(running, start, act)


def _go_on(running: _Conduct, start: StartRecord, handover: Handover) -> None:
    """The rest of the start that an orch which is gone had begun, up to the gate."""
    session, plan = running.session, running.plan
    workload, hold = session.project.workload(plan.workload), Hold(running.ttl_s, True)
    _judge(
        running,
        start,
        lambda: take_over(session, handover, workload, plan.concurrencies, hold=hold, on_load=running.on_load),
    )


def _judge(running: _Conduct, start: StartRecord, act: Callable[[], Trial]) -> None:
    """Makes a start, and says whether it counts."""
    session, arm = running.session, start.planned.arm
    try:
        made = act()
    except (EngineError, LoadError) as exc:
        running.failures[arm] = running.failures.get(arm, 0) + 1
        _set_aside(running, start, Admission((exc.message,)), "failed", exc.evidence)
        return
    except LeaseLostError as exc:  # the laptop slept too long; no fault of the arm
        _set_aside(running, start, Admission((exc.message,)), "failed", exc.evidence)
        return
    running.failures[arm] = 0
    _refuse_other_conditions(running, start, made)
    admission = admitting.judge_start(session, running.plan, start, made, running.earlier)
    admission = replace(admission, flags=(*made.flags, *admission.flags))
    if admission.is_admissible:
        session.store.end_start(start.id, "ok", (), admission.flags)
        running.tell("counted", events.start_counts(running.plan, start, made.trial_id, made.loads, admission))
        return
    _set_aside(running, start, admission, "set-aside")
    if admission.is_wrong_output:
        running.wrong_output = arm


def _refuse_other_conditions(running: _Conduct, start: StartRecord, made: Trial) -> None:
    """Another driver, workload or engine than at the first start: no later start could be compared with it either.

    Raises:
        ExperimentError: says what changed; the start is set aside.
    """
    now = admitting.conditions(running.session, running.plan, made.trial_id, made.digest)
    changed = admitting.changes(running.conditions, now)
    if changed:
        _set_aside(running, start, Admission(tuple(changed)), "set-aside")
        raise ExperimentError(
            f"the conditions are not those of the experiment's first start: {'; '.join(changed)}",
            next_step="take the change back",
        )
    running.conditions = running.conditions or now


def _make_live(running: _Conduct, arm: str) -> None:
    """The arm's bytes on the host, under this experiment's lease; a clean host is the baseline already."""
    variant = running.variants.get(arm)
    if variant is not None:
        deployed = deploy(
            running.session, variant, ttl_s=running.ttl_s, is_forced=True, attempt=running.attempts.get(arm)
        )
        running.attempts[arm] = deployed.attempt
    elif not look(running.session, "push").is_clean:
        deploy_baseline(running.session, ttl_s=running.ttl_s)


def _set_aside(
    running: _Conduct,
    start: StartRecord,
    admission: Admission,
    status: EndedStartStatus,
    evidence: tuple[str, ...] = (),
) -> None:
    """A start that may not count takes its block with it; the block is made again, up to the plan's limit."""
    store = running.session.store
    store.end_start(start.id, status, admission.reasons, admission.flags)
    blocks.mend(store, running.experiment_id)
    running.earlier = [one for one in running.earlier if one.block != start.planned.block]
    is_repeated = blocks.n_lost(running.record()) <= running.plan.max_repeats
    running.tell("set-aside", events.start_is_lost(start, admission, is_repeated=is_repeated, evidence=evidence))


def _why_stop(running: _Conduct) -> str | None:
    """Why the experiment cannot go on, whatever the numbers say."""
    if running.wrong_output is not None:
        return f"{running.wrong_output} gives other texts than the baseline: its output is wrong"
    broken = next((arm for arm, n in running.failures.items() if n >= MAX_FAILURES), None)
    if broken is not None:
        return f"{broken} failed {MAX_FAILURES} times in a row"
    return None


# ---- the looks


def _look_if_due(running: _Conduct, record: ExperimentRecord) -> Analysis | None:
    """The planned analysis of so many complete blocks; where an orch ended right after it, the one on record."""
    complete = blocks.n_complete_blocks(record)
    if complete not in running.plan.looks:
        return None
    made = [one for one in running.session.store.analyses(running.experiment_id) if one.n_blocks == complete]
    return analysis_from_document(made[-1].document) if made else _look(running, complete)


def _settled(plan: Plan, analysis: Analysis) -> FinalStatus:
    """``decided`` when every variant has an answer at the primary concurrency; else no look is left, or no hope."""
    if all(arm.primary.verdict not in (None, "INCONCLUSIVE") for arm in analysis.arms):
        return "decided"
    return "exhausted" if analysis.n_blocks == plan.looks[-1] else "hopeless"


def _conclude_early(running: _Conduct) -> Analysis | None:
    """What the complete blocks say when it ends away from a look, on record; None before the first is complete."""
    complete = blocks.n_complete_blocks(running.record())
    return _look(running, complete, is_last=True) if complete else None


def _look(running: _Conduct, n_blocks: int, *, is_last: bool = False) -> Analysis:
    """An analysis, on record when this returns.

    Args:
        is_last: nothing will follow, whatever it says.
    """
    values = running.session.store.start_values(running.experiment_id, running.plan.metric)
    analysis = stats.analyse(running.plan, values, n_blocks=n_blocks)
    if is_last:
        analysis = replace(analysis, is_final=True)
    document = analysis_document(analysis)
    running.session.store.record_analysis(running.experiment_id, analysis, document)
    running.tell("look", events.look_made(analysis))
    return analysis
