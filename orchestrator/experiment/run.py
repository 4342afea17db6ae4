"""A whole experiment: drawn, stored, its starts made in order, looked at where planned, and the host put back.

``conduct`` is the same whether an experiment begins or goes on after a crash: it asks the record which start comes
next, and the record is written before and after every act. Owns the order; the statistics, the gate and the host's
acts are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator import push, stats
from orchestrator.admission import EarlierStart
from orchestrator.designs import Admission, Analysis, ExperimentRecord, Plan, StartRecord
from orchestrator.errors import (
    ConnectionError_,
    EngineError,
    ExperimentError,
    ForeignEditError,
    InterruptedError_,
    LeaseHeldError,
    LeaseLostError,
    OrchError,
    StaleBaseError,
)
from orchestrator.experiment import admitting
from orchestrator.experiment.conclude import Concluded, conclude
from orchestrator.experiment.deploy import deploy
from orchestrator.experiment.trial import Hold, LoadWatch, Trial, trial
from orchestrator.interrupts import shielded
from orchestrator.records import Progress, Variant, short
from orchestrator.report.document import analysis_document
from orchestrator.session import Session, look, read_variant
from orchestrator.store import FinalStatus

EXPERIMENT_TTL_S = 1800.0
"""How long the host keeps a variant of an experiment whose controller is gone; then it restores itself."""

ABANDONED = "its orch ended before it was complete"

MAX_CRASHES = 2
"""An arm whose engine fails so often in a row is broken, not unlucky."""

Emit = Callable[[str, str, Mapping[str, Any]], None]
"""Told of each event: kind, one line for a person, and the facts for a machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an experiment stands when ``conduct`` returns.

    Attributes:
        analysis: the last one; None when no block was completed.
        concluded: the restored host.
    """

    experiment: ExperimentRecord
    analysis: Analysis | None
    concluded: Concluded


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
    variants: Mapping[str, Variant]
    emit: Emit
    wishes: Wishes
    on_load: LoadWatch | None
    ttl_s: float
    earlier: list[EarlierStart] = field(default_factory=list)
    crashes: dict[str, int] = field(default_factory=dict)
    wrong_output: str | None = None

    def record(self) -> ExperimentRecord:
        """The experiment as the store has it now."""
        return self.session.store.experiment(self.experiment_id)

    def tell(self, kind: str, text: str, **facts: Any) -> None:
        """Records an event and hands it on."""
        self.session.store.record_event(self.experiment_id, kind, text, facts)
        self.emit(kind, text, facts)


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

    Raises:
        StaleBaseError, ForeignEditError: somebody else changed the file; the host was put back as far as it is ours.
        ExperimentError: a variant is no longer the one of the plan.
        InterruptedError_: Ctrl-C; the host was put back, `orch resume` goes on.
        RevertError: THE HOST IS NOT RESTORED.
    """
    plan = session.store.experiment(experiment_id).plan
    running = _Conduct(session, experiment_id, plan, _variants(session, plan), emit, wishes or Wishes(), on_load, ttl_s)
    session.store.begin_experiment(experiment_id)
    _recover(running)
    running.earlier = admitting.earlier_starts(session, running.record())
    try:
        analysis, status, reason = _run(running)
    except KeyboardInterrupt:
        _leave(running, "interrupted")
        raise InterruptedError_(
            f"interrupted: experiment {experiment_id} is stopped and the host is as it was",
            next_step=f"`orch resume {experiment_id}` goes on, `orch report {experiment_id}` shows what there is",
        ) from None
    except OrchError as exc:
        _leave(running, str(exc))
        raise
    return _end(running, analysis, status, reason)


def _variants(session: Session, plan: Plan) -> dict[str, Variant]:
    """The variants of the plan, as they are in the workspace now.

    Raises:
        ExperimentError: one was edited since the plan was drawn.
    """
    found = {}
    for arm in plan.arms[1:]:
        if plan.is_aa:
            continue
        variant = read_variant(session.project, session.target, arm.name)
        if variant.digest != arm.digest:
            raise ExperimentError(
                f"{arm.name} is {short(variant.digest)} now, the plan was drawn for {short(arm.digest)}",
                next_step=f"put its files back (`orch query` has them by digest), or run a new `orch run {arm.name}`",
            )
        found[arm.name] = variant
    return found


def _recover(running: _Conduct) -> None:
    """What a killed controller left: the start that was under way is none, and is made again at the same place."""
    store = running.session.store
    left = store.abandon_running_starts(running.experiment_id, ABANDONED)
    for start_id in left:
        store.repeat_start(start_id)
    if left:
        running.tell("recovered", "the start that was under way when orch ended is made again", n_starts=len(left))


def _leave(running: _Conduct, reason: str) -> None:
    """Puts the host back and keeps the experiment open for `orch resume`."""
    with shielded("putting the host back"):
        _put_back(running, restart=False)
        running.tell("left", f"stopped: {reason}", reason=reason)


def _end(running: _Conduct, analysis: Analysis | None, status: FinalStatus, reason: str | None) -> Outcome:
    with shielded("putting the host back"):
        concluded = _put_back(running, restart=True)
        running.session.store.end_experiment(running.experiment_id, status, reason)
    running.tell("end", f"experiment {running.experiment_id} is {status}", status=status, reason=reason)
    return Outcome(running.record(), analysis, concluded)


def _put_back(running: _Conduct, *, restart: bool) -> Concluded:
    concluded = conclude(running.session, restart=restart)
    digest = concluded.restoration.digest
    running.tell("restored", f"{running.plan.target} is restored: {short(digest)}", digest=digest)
    return concluded


def stop(session: Session, experiment_id: int, emit: Emit) -> Outcome:
    """Ends an unfinished experiment: the host is put back, and what was measured is kept and analysed.

    Raises:
        RevertError: THE HOST IS NOT RESTORED.
    """
    plan = session.store.experiment(experiment_id).plan
    running = _Conduct(session, experiment_id, plan, {}, emit, Wishes(), None, EXPERIMENT_TTL_S)
    session.store.abandon_running_starts(experiment_id, ABANDONED)
    return _end(running, _conclude_early(running), "stopped", "stopped by its user")


# ---- the starts


def _run(running: _Conduct) -> tuple[Analysis | None, FinalStatus, str | None]:
    """Start after start, until a look decides, the looks are used up, or something ends it."""
    while True:
        record = running.record()
        analysis = _look_if_due(running, record)
        if analysis is not None and analysis.is_final:
            return analysis, _settled(analysis), analysis.stop_reason
        if running.wishes.finish_start:
            raise KeyboardInterrupt
        following = next_start(record)
        if following is None:
            return _conclude_early(running), "exhausted", "too many starts were set aside for a further look"
        _make(running, record, following)
        stop = _why_stop(running)
        if stop is not None:
            return _conclude_early(running), "failed", stop


def _look_if_due(running: _Conduct, record: ExperimentRecord) -> Analysis | None:
    """The planned analysis, when its last block has just been completed, or was before orch ended."""
    complete = n_complete_blocks(record)
    looked_at = {made.n_blocks for made in running.session.store.analyses(running.experiment_id)}
    return _look(running, complete) if complete in running.plan.looks and complete not in looked_at else None


def _settled(analysis: Analysis) -> FinalStatus:
    """``decided`` when every variant has an answer at the primary concurrency."""
    is_decided = all(arm.primary.verdict not in (None, "INCONCLUSIVE") for arm in analysis.arms)
    return "decided" if is_decided else "exhausted"


def next_start(record: ExperimentRecord) -> StartRecord | None:
    """The start that comes next: the first that is planned, in the order of blocks and positions."""
    planned = [start for start in record.starts if start.status == "planned"]
    return min(planned, key=lambda start: (start.planned.block, start.planned.position), default=None)


def n_complete_blocks(record: ExperimentRecord) -> int:
    """Blocks in which every arm has an admissible start."""
    n_arms = len(record.plan.arms)
    blocks = [start.planned.block for start in record.starts if start.status == "ok"]
    return sum(blocks.count(block) == n_arms for block in set(blocks))


def _make(running: _Conduct, record: ExperimentRecord, start: StartRecord) -> None:
    """One start, from the push to the gate."""
    store, arm = running.session.store, start.planned.arm
    n_done = sum(one.status == "ok" for one in record.starts)
    running.session.report(Progress("run", f"start of {arm}", n_done, len(running.plan.starts)))
    running.tell("start", f"block {start.planned.block + 1}, {arm}", block=start.planned.block, arm=arm)
    made: Trial | None = None
    try:
        _make_live(running, arm)
        made = trial(
            running.session,
            running.session.project.workload(running.plan.workload),
            running.plan.concurrencies,
            on_load=running.on_load,
            hold=Hold(running.ttl_s, True, lambda trial_id: store.begin_start(start.id, trial_id)),
        )
    except (StaleBaseError, ForeignEditError, LeaseHeldError, ConnectionError_):
        raise
    except (EngineError, LeaseLostError) as exc:  # a lease that ran out says nothing about the arm
        _set_aside(running, start, Admission((str(exc),)), is_crash=isinstance(exc, EngineError))
        return
    admission = admitting.judge_start(running.session, running.plan, start, made, running.earlier)
    if not admission.is_admissible:
        _set_aside(running, start, admission, is_crash=False)
        if admission.is_wrong_output:
            running.wrong_output = arm
        return
    running.crashes[arm] = 0
    store.end_start(start.id, "ok", (), admission.flags)
    running.tell("start-ended", f"{arm}: counts", arm=arm, trial_id=made.trial_id, flags=list(admission.flags))


def _make_live(running: _Conduct, arm: str) -> None:
    """The arm's bytes on the host, under this experiment's lease."""
    variant = running.variants.get(arm)
    if variant is not None:
        deploy(running.session, variant, ttl_s=running.ttl_s, is_forced=True)
        return
    live = look(running.session, "push")
    if not live.is_clean and live.nonce is not None:
        push.revert(running.session.remote, running.session.target, nonce=live.nonce)
        for opened in running.session.store.open_deployments(running.session.target.name):
            running.session.store.end_deployment(opened.id, "reverted")


def _set_aside(running: _Conduct, start: StartRecord, admission: Admission, *, is_crash: bool) -> None:
    """A start that may not count takes its block with it; the block is made again, up to the plan's limit."""
    store, block, arm = running.session.store, start.planned.block, start.planned.arm
    running.crashes[arm] = running.crashes.get(arm, 0) + 1 if is_crash else 0
    store.end_start(start.id, "failed" if is_crash else "set-aside", admission.reasons, admission.flags)
    running.tell("set-aside", f"{arm}: {'; '.join(admission.reasons)}", arm=arm, reasons=list(admission.reasons))
    running.earlier = [one for one in running.earlier if one.block != block]
    record = running.record()
    can_repeat = _n_lost_blocks(record) <= running.plan.max_repeats
    for one in _latest_of_block(record, block):
        if one.status == "ok":
            store.end_start(one.id, "set-aside", (f"its block lost the start of {arm}",), one.flags)
        if one.status == "planned" and not can_repeat:
            store.end_start(one.id, "set-aside", (f"not made: its block lost the start of {arm}",), ())
        if one.status != "planned" and can_repeat:
            store.repeat_start(one.id)


def _latest_of_block(record: ExperimentRecord, block: int) -> list[StartRecord]:
    """The newest attempt of each start of a block."""
    newest: dict[int, StartRecord] = {}
    for start in sorted(record.starts, key=lambda one: one.attempt):
        if start.planned.block == block:
            newest[start.planned.position] = start
    return list(newest.values())


def _n_lost_blocks(record: ExperimentRecord) -> int:
    """How often a block was lost to a start that may not count; an orch that ended does not count against the limit."""
    lost = [start for start in record.starts if start.status in ("set-aside", "failed")]
    return len({(start.planned.block, start.attempt) for start in lost if ABANDONED not in start.reasons})


def _why_stop(running: _Conduct) -> str | None:
    """Why the experiment cannot go on, whatever the numbers say."""
    if running.wrong_output is not None:
        return f"{running.wrong_output} gives other texts than the baseline: its output is wrong"
    broken = next((arm for arm, n in running.crashes.items() if n >= MAX_CRASHES), None)
    if broken is not None:
        return f"the engine failed on {broken} {MAX_CRASHES} times in a row"
    return None


# ---- the looks


def _conclude_early(running: _Conduct) -> Analysis | None:
    """What the complete blocks say when it ends away from a look, on record; None before the first is complete."""
    complete = n_complete_blocks(running.record())
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
    words = ", ".join(f"{arm.arm} {arm.primary.verdict or 'no verdict'}" for arm in analysis.arms)
    running.tell("look", f"look after {n_blocks} pairs: {words}", **document)
    return analysis
