"""The starts of an experiment, one at a time on one host: made, judged, set aside; and the looks at what there is.

``Conduct`` is one experiment under way on one host. On a cluster there is one for each node, with what is common to
all of them in ``Board``. Which start comes when, and what happens to the host around it, is told elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from orchestrator import stats
from orchestrator.admission import EarlierStart
from orchestrator.designs import Admission, Analysis, ExperimentRecord, Plan, StartRecord
from orchestrator.errors import EngineError, ExperimentError, LeaseLostError, LoadError, OrchError
from orchestrator.experiment import admitting, blocks, events
from orchestrator.experiment.check import Attempt
from orchestrator.experiment.deploy import deploy, deploy_baseline
from orchestrator.experiment.draw import start_cost_s
from orchestrator.experiment.takeover import Handover, take_over
from orchestrator.experiment.trial import Hold, LoadWatch, Trial, trial
from orchestrator.records import Variant
from orchestrator.report.document import analysis_document, analysis_from_document
from orchestrator.session import Session, look
from orchestrator.store import EndedStartStatus, FinalStatus, RecordedEvent

EXPERIMENT_TTL_S = 1800.0
"""How long the host keeps a variant of an experiment whose controller is gone; then it restores itself."""

MAX_FAILURES = 2
"""An arm that fails so often in a row is broken, not unlucky."""

Emit = Callable[[RecordedEvent], None]
"""Told of each event, once it is on record."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an experiment ends: what the last analysis said (None before a block is complete), and why it ends."""

    analysis: Analysis | None
    status: FinalStatus
    reason: str | None


@dataclass(slots=True)
class Wishes:
    """What the user asks while it runs. ``finish_start``: stop after the start that is under way."""

    finish_start: bool = False


@dataclass(slots=True)
class Board:
    """What the hosts of one experiment share. It is read and written under ``changed``.

    Attributes:
        failures: of each arm, in a row. wrong_output: the arm whose texts are not the baseline's.
        claims: who makes a block that was begun: pairs are compared, so a block stays on one host.
        conditions: of the first start that counted; nodes have to be alike.
        n_hosts: how many make starts at the same time.
        ending: set once, by the host that finds it. is_stopped: each host leaves off as soon as it can.
    """

    changed: threading.Condition = field(default_factory=threading.Condition)
    failures: dict[str, int] = field(default_factory=dict)
    wrong_output: str | None = None
    claims: dict[int, str] = field(default_factory=dict)
    conditions: Mapping[str, str] | None = None
    n_hosts: int = 1
    ending: Ending | None = None
    is_stopped: bool = False


@dataclass(slots=True)
class Conduct:
    """One experiment under way, on one host.

    Attributes:
        is_lane: the host is one of several nodes; what happens there is told with its name.
    """

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
    board: Board = field(default_factory=Board)
    is_lane: bool = False

    def record(self) -> ExperimentRecord:
        """The experiment as the store has it now."""
        return self.session.store.experiment(self.experiment_id)

    @property
    def host(self) -> str:
        """Where its starts are made."""
        return self.session.target.host

    def tell(self, kind: str, told: events.Told) -> None:
        """Records an event and hands it on; on a cluster it says on which node."""
        text, facts = told
        if self.is_lane:
            text, facts = f"{self.host}: {text}", {**facts, "host": self.host}
        self.emit(self.session.store.record_event(self.experiment_id, kind, text, facts))


# ---- which act comes next


def next_act(running: Conduct) -> StartRecord | Ending | None:
    """The start that this host makes next, or how the experiment ends; None where others have to finish first.

    To be called under ``board.changed``. A start that is given out is this host's.
    """
    board = running.board
    if board.ending is None:
        board.ending = _ending(running)
        board.changed.notify_all()
    if board.ending is not None:
        return board.ending
    if running.wishes.finish_start or board.is_stopped:
        raise KeyboardInterrupt
    following = blocks.next_start(running.record(), board.claims, running.host)
    if following is not None:
        board.claims[following.planned.block] = running.host
    return following


def _ending(running: Conduct) -> Ending | None:
    """Whether a look decides, the looks are used up, or something else ends it."""
    why = _why_stop(running)
    if why is not None:
        return Ending(conclude_early(running), "failed", why)
    record = running.record()
    analysis = _look_if_due(running, record)
    if analysis is not None and analysis.stop_reason is not None:
        return Ending(analysis, _settled(running.plan, analysis), analysis.stop_reason)
    if blocks.next_look(record) is None or not any(one.status in ("planned", "running") for one in record.starts):
        n_lost, n_complete = blocks.n_lost(record), blocks.n_complete_blocks(record)
        reason = f"{n_lost} starts may not count, and no look can be reached any more from {n_complete} blocks"
        return Ending(conclude_early(running), "exhausted", reason)
    return None


# ---- one start


def make(running: Conduct, start: StartRecord) -> None:
    """One start, from the push to the gate."""
    session, plan = running.session, running.plan
    alone_s = start_cost_s(session.store, plan)
    each_s = None if alone_s is None else alone_s / running.board.n_hosts
    running.tell("start", events.start_begins(running.record(), start, each_s, time.monotonic() - running.began_s))
    hold = Hold(running.ttl_s, True, lambda trial_id: session.store.begin_start(start.id, trial_id))

    def act() -> Trial:
        _make_live(running, start.planned.arm)
        workload = session.project.workload(plan.workload)
        return trial(session, workload, plan.concurrencies, on_load=running.on_load, hold=hold)

    _judge(running, start, act)


def go_on(running: Conduct, start: StartRecord, handover: Handover) -> None:
    """The rest of the start that an orch which is gone had begun, up to the gate."""
    session, plan = running.session, running.plan
    workload, hold = session.project.workload(plan.workload), Hold(running.ttl_s, True)
    _judge(
        running,
        start,
        lambda: take_over(session, handover, workload, plan.concurrencies, hold=hold, on_load=running.on_load),
    )


def _judge(running: Conduct, start: StartRecord, act: Callable[[], Trial]) -> None:
    """Makes a start, and says whether it counts."""
    board, arm = running.board, start.planned.arm
    try:
        made = act()
    except (EngineError, LoadError) as exc:
        with board.changed:
            board.failures[arm] = board.failures.get(arm, 0) + 1
            _set_aside(running, start, Admission((exc.message,)), "failed", exc.evidence)
        return
    except LeaseLostError as exc:  # the laptop slept too long; no fault of the arm
        with board.changed:
            _set_aside(running, start, Admission((exc.message,)), "failed", exc.evidence)
        return
    with board.changed:
        board.failures[arm] = 0
        _refuse_other_conditions(running, start, made)
        admission = admitting.judge_start(running.session, running.plan, start, made, running.earlier)
        admission = replace(admission, flags=(*made.flags, *admission.flags))
        if not admission.is_admissible:
            _set_aside(running, start, admission, "set-aside")
            if admission.is_wrong_output:
                board.wrong_output = arm
            return
        running.session.store.end_start(start.id, "ok", (), admission.flags)
        running.tell("counted", events.start_counts(running.plan, start, made.trial_id, made.loads, admission))
        if start.planned.block in blocks.complete_blocks(running.record()):
            board.claims.pop(start.planned.block, None)
        board.changed.notify_all()


def lose_host(running: Conduct, start: StartRecord | None, error: OrchError) -> None:
    """The host is out of reach while others go on: its block is made again elsewhere, as a whole."""
    board, store = running.board, running.session.store
    with board.changed:
        running.tell("node-lost", events.node_lost(error))
        if start is not None:
            _set_aside(running, start, Admission((error.message,)), "failed", error.evidence)
        for block in [block for block, host in board.claims.items() if host == running.host]:
            blocks.give_up_block(store, running.experiment_id, block, error.message)
            del board.claims[block]
        blocks.mend(store, running.experiment_id)
        store.fail_running_trials(running.session.target.name, error.message, running.host)
        board.changed.notify_all()


def _refuse_other_conditions(running: Conduct, start: StartRecord, made: Trial) -> None:
    """Another driver, workload or engine than at the first start: no later start could be compared with it either.

    Raises:
        ExperimentError: says what changed; the start is set aside.
    """
    now = admitting.conditions(running.session, running.plan, made.trial_id, made.digest)
    before, board = running.conditions, running.board
    if before is None and now is not None and board.conditions is not None:  # the first start on another node
        before = {**board.conditions, **{key: now[key] for key in admitting.OF_ONE_MACHINE if key in now}}
    changed = admitting.changes(before, now)
    if changed:
        _set_aside(running, start, Admission(tuple(changed)), "set-aside")
        where = f" on {running.host}" if running.session.is_node else ""
        raise ExperimentError(
            f"the conditions{where} are not those of the experiment's first start: {'; '.join(changed)}",
            next_step="take the change back",
        )
    running.conditions = running.conditions or now
    board.conditions = board.conditions or now


def _make_live(running: Conduct, arm: str) -> None:
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
    running: Conduct,
    start: StartRecord,
    admission: Admission,
    status: EndedStartStatus,
    evidence: tuple[str, ...] = (),
) -> None:
    """A start that may not count takes its block with it; the block is made again, up to the plan's limit."""
    store = running.session.store
    store.end_start(start.id, status, admission.reasons, admission.flags)
    blocks.mend(store, running.experiment_id)
    running.board.claims.pop(start.planned.block, None)
    running.board.changed.notify_all()
    running.earlier = [one for one in running.earlier if one.block != start.planned.block]
    is_repeated = blocks.n_lost(running.record()) <= running.plan.max_repeats
    running.tell("set-aside", events.start_is_lost(start, admission, is_repeated=is_repeated, evidence=evidence))


def _why_stop(running: Conduct) -> str | None:
    """Why the experiment cannot go on, whatever the numbers say."""
    if running.board.wrong_output is not None:
        return f"{running.board.wrong_output} gives other texts than the baseline: its output is wrong"
    broken = next((arm for arm, n in running.board.failures.items() if n >= MAX_FAILURES), None)
    if broken is not None:
        return f"{broken} failed {MAX_FAILURES} times in a row"
    return None


# ---- the looks


def _look_if_due(running: Conduct, record: ExperimentRecord) -> Analysis | None:
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


def conclude_early(running: Conduct) -> Analysis | None:
    """What the complete blocks say when it ends away from a look, on record; None before the first is complete."""
    complete = blocks.n_complete_blocks(running.record())
    return _look(running, complete, is_last=True) if complete else None


def _look(running: Conduct, n_blocks: int, *, is_last: bool = False) -> Analysis:
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
